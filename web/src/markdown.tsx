// Markdown as elements. The text comes from models and from people: HTML in it is shown as text, links
// lead only to web and mail addresses, and images become links, so nothing is loaded or run.

import { type Token, type Tokens, lexer } from "marked";
import { type ComponentChildren, h } from "preact";
import { highlighted } from "./highlight";
import { CopyButton } from "./ui/parts";

/** Maximum depth of nested lists and quotations; deeper ones are shown as text. */
const DEPTH_MAX = 12;

/** Maximum length of a text that is parsed; longer ones are shown as they are. */
const CHARS_MAX = 400_000;

export function Markdown({ text }: { text: string }) {
  if (CHARS_MAX < text.length) return <div class="markdown pre">{text}</div>;
  let tokens: Token[];
  try {
    tokens = lexer(text, { gfm: true, breaks: true });
  } catch {
    return <div class="markdown pre">{text}</div>;
  }
  return <div class="markdown">{blocks(tokens, 0)}</div>;
}

function blocks(tokens: Token[], depth: number): ComponentChildren {
  return tokens.map((token) => block(token, depth));
}

function block(token: Token, depth: number): ComponentChildren {
  if (DEPTH_MAX < depth) return <p class="pre">{token.raw}</p>;
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "checkbox":
      return <input type="checkbox" checked={(token as Tokens.Checkbox).checked} disabled aria-label="done" />;
    case "heading": {
      // The page itself has the first two levels.
      const level = Math.min(6, (token as Tokens.Heading).depth + 2);
      return h(`h${level}`, null, spans(token.tokens ?? [], depth));
    }
    case "paragraph":
      return <p>{spans(token.tokens ?? [], depth)}</p>;
    case "code":
      return <Code text={(token as Tokens.Code).text} language={(token as Tokens.Code).lang ?? ""} />;
    case "blockquote":
      return <blockquote>{blocks(token.tokens ?? [], depth + 1)}</blockquote>;
    case "list":
      return <List list={token as Tokens.List} depth={depth} />;
    case "table":
      return <Table table={token as Tokens.Table} depth={depth} />;
    case "hr":
      return <hr />;
    case "text":
      return <>{token.tokens === undefined ? unescaped(token.text) : spans(token.tokens, depth)}</>;
    default:
      return <p class="pre">{token.raw}</p>;
  }
}

function List({ list, depth }: { list: Tokens.List; depth: number }) {
  const items = list.items.map((item) => (
    <li class={item.task ? "task" : undefined}>
      {blocks(item.tokens, depth + 1)}
    </li>
  ));
  return list.ordered ? <ol start={list.start === "" ? 1 : list.start}>{items}</ol> : <ul>{items}</ul>;
}

function Table({ table, depth }: { table: Tokens.Table; depth: number }) {
  return (
    <div class="table-wrap" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>
            {table.header.map((cell) => (
              <th scope="col">{spans(cell.tokens, depth)}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {table.rows.map((row) => (
            <tr>
              {row.map((cell) => (
                <td>{spans(cell.tokens, depth)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function spans(tokens: Token[], depth: number): ComponentChildren {
  return tokens.map((token) => span(token, depth));
}

/** Resolves the entities that texts are written with most; others stay as they are. */
function unescaped(text: string): string {
  return text.replace(/&(amp|lt|gt|quot|#39);/g, (_, name: string) => ({ amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'" })[name] ?? "");
}

function span(token: Token, depth: number): ComponentChildren {
  if (DEPTH_MAX < depth) return token.raw;
  const nested = "tokens" in token ? (token.tokens ?? []) : [];
  const inner = () => spans(nested, depth + 1);
  switch (token.type) {
    case "strong":
      return <strong>{inner()}</strong>;
    case "em":
      return <em>{inner()}</em>;
    case "del":
      return <del>{inner()}</del>;
    case "br":
      return <br />;
    case "codespan":
      return <code>{(token as Tokens.Codespan).text}</code>;
    case "link":
      return <Anchor href={(token as Tokens.Link).href}>{inner()}</Anchor>;
    case "image": {
      const image = token as Tokens.Image;
      return <Anchor href={image.href}>{`Image: ${image.text || image.href}`}</Anchor>;
    }
    case "escape":
      return (token as Tokens.Escape).text;
    case "text":
      return nested.length === 0 ? unescaped((token as Tokens.Text).text) : inner();
    default:
      return token.raw;
  }
}

const SCHEMES = ["http:", "https:", "mailto:"];

function Anchor({ href, children }: { href: string; children: ComponentChildren }) {
  let url: URL;
  try {
    url = new URL(href);
  } catch {
    return <span>{children}</span>;
  }
  if (!SCHEMES.includes(url.protocol)) return <span>{children}</span>;
  return (
    <a href={url.href} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

function Code({ text, language }: { text: string; language: string }) {
  const name = language.split(/\s/)[0] ?? "";
  return (
    <figure class="code">
      <figcaption>
        <span>{name === "" ? "code" : name}</span>
        <CopyButton text={text} label="Copy code" />
      </figcaption>
      <pre tabIndex={0} aria-label={name === "" ? "Code" : `Code in ${name}`}>
        <code>{highlighted(text, name)}</code>
      </pre>
    </figure>
  );
}
