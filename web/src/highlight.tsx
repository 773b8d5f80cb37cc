// Colours for code: comments, strings, numbers and key words, which most languages share.

import type { ComponentChildren } from "preact";

/** Longer texts are shown without colours. */
const CHARS_MAX = 50_000;

const WORDS = new Set(
  ("abstract as async await bool boolean break case catch char class const continue def default defer del do double elif else enum " +
    "except export extends extern false False final finally float fn for from func function global go goto if impl implements import in " +
    "instanceof int interface is lambda let long loop match mod module move mut namespace new nil None not null or and package pass private " +
    "protected pub public raise ref return self Self short sizeof static str string struct super switch this throw throws trait true True " +
    "try type typedef typeof union unsafe unsigned use using var void volatile when where while with yield " +
    "select insert update delete create table join group order by limit values into set SELECT FROM WHERE INSERT UPDATE DELETE CREATE TABLE JOIN GROUP ORDER BY LIMIT VALUES INTO SET AND OR NOT NULL AS ON " +
    "then fi done esac echo local").split(" "),
);

/** Languages in which `#` begins a comment. */
const HASH = new Set(["py", "python", "sh", "bash", "shell", "zsh", "rb", "ruby", "yaml", "yml", "toml", "make", "makefile", "r", "perl", "dockerfile", "ini", "conf"]);
const DASH = new Set(["sql", "lua", "haskell", "hs", "ada"]);
const PLAIN = new Set(["", "text", "txt", "plain", "plaintext", "md", "markdown", "console", "output"]);

function pattern(language: string): RegExp {
  const comment = HASH.has(language) ? "#[^\\n]*" : DASH.has(language) ? "--[^\\n]*" : "//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)";
  const text = "\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'|`(?:\\\\.|[^`\\\\])*`?";
  return new RegExp(`(${comment})|(${text})|(\\b\\d[\\w.]*)|([A-Za-z_]\\w*)`, "g");
}

export function highlighted(text: string, language: string): ComponentChildren {
  const name = language.toLowerCase();
  if (PLAIN.has(name) || CHARS_MAX < text.length) return text;
  const parts: ComponentChildren[] = [];
  let end = 0;
  for (const found of text.matchAll(pattern(name))) {
    const [whole, comment, string, number] = found;
    const kind = comment !== undefined ? "c" : string !== undefined ? "s" : number !== undefined ? "n" : WORDS.has(whole) ? "k" : null;
    if (kind === null) continue;
    parts.push(text.slice(end, found.index), <span class={`hl-${kind}`}>{whole}</span>);
    end = found.index + whole.length;
  }
  parts.push(text.slice(end));
  return parts;
}
