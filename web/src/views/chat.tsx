// Conversations with the models.

import { useEffect, useRef, useState } from "preact/hooks";
import {
  type Chat as ChatData,
  type Message,
  type Params,
  type ToolCall,
  busy,
  change,
  chats,
  current,
  download,
  giveResults,
  newChat,
  parseTools,
  regenerate,
  remove,
  say,
  sayAgain,
  stop,
  waiting,
} from "../chats";
import { count, digits, percent, plural, seconds, shortName } from "../format";
import { Markdown } from "../markdown";
import { cluster } from "../state";
import { Button, Confirm, CopyButton, Empty, Field, Icon, Problem } from "../ui/parts";

/** Distance from the end, in pixels, within which the thread follows an answer. */
const FOLLOW_PX = 80;

export function ChatView() {
  const [panel, setPanel] = useState<"none" | "list" | "settings">("none");
  const chat = chats.value.find((it) => it.id === current.value) ?? null;
  useEffect(() => {
    if (current.peek() === null) newChat();
  }, [current.value]);
  const toggle = (name: "list" | "settings") => setPanel(panel === name ? "none" : name);
  return (
    <div class={`chat panel-${panel}`}>
      <ChatList onChoose={() => setPanel("none")} />
      {chat === null ? (
        <Empty>Begin a conversation.</Empty>
      ) : (
        <section class="chat-main" aria-label="Conversation">
          <header class="chat-head">
            <span class="only-narrow">
              <Button icon="list" label="Conversations" iconOnly expanded={panel === "list"} onClick={() => toggle("list")} />
            </span>
            <ModelChoice chat={chat} />
            <span class="spacer" />
            <Button icon="settings" label="Settings" iconOnly expanded={panel === "settings"} onClick={() => toggle("settings")} />
          </header>
          {panel === "settings" && <Settings chat={chat} />}
          <Thread chat={chat} />
          <Composer key={chat.id} chat={chat} />
        </section>
      )}
    </div>
  );
}

function ChatList({ onChoose }: { onChoose: () => void }) {
  const [doomed, setDoomed] = useState<ChatData | null>(null);
  const list = [...chats.value].sort((one, other) => other.updated - one.updated);
  return (
    <nav class="chat-list" aria-label="Conversations">
      <Button
        icon="plus"
        label="New conversation"
        kind="main"
        onClick={() => {
          newChat();
          onChoose();
        }}
      />
      <ul>
        {list.map((chat) => (
          <li class={chat.id === current.value ? "current" : ""}>
            <button
              type="button"
              class="chat-name"
              aria-current={chat.id === current.value}
              onClick={() => {
                current.value = chat.id;
                onChoose();
              }}
            >
              {chat.title}
            </button>
            <Button icon="trash" label={`Delete ${chat.title}`} iconOnly onClick={() => setDoomed(chat)} />
          </li>
        ))}
      </ul>
      <p class="muted small">Conversations stay in this browser.</p>
      {doomed !== null && (
        <Confirm
          title="Delete the conversation?"
          action="Delete"
          onClose={() => setDoomed(null)}
          onConfirm={() => {
            remove(doomed.id);
            setDoomed(null);
          }}
        >
          <p>
            “{doomed.title}” has {plural(doomed.messages.length, "message")}. It cannot be restored.
          </p>
        </Confirm>
      )}
    </nav>
  );
}

function ModelChoice({ chat }: { chat: ChatData }) {
  const models = cluster.value?.models ?? [];
  const isKnown = chat.model === "" || models.some((it) => it.id === chat.model);
  return (
    <select
      class="select quiet"
      aria-label="Model"
      value={chat.model}
      onChange={(event) => {
        const model = event.currentTarget.value;
        change(chat.id, (it) => ({ ...it, model }));
      }}
    >
      <option value="">{models.length <= 1 ? shortName(cluster.value?.default_model ?? "default model") : `default: ${shortName(cluster.value?.default_model ?? "")}`}</option>
      {!isKnown && <option value={chat.model}>{chat.model} (not served)</option>}
      {1 < models.length &&
        models.map((it) => (
          <option value={it.id}>
            {shortName(it.id)} ({it.state})
          </option>
        ))}
    </select>
  );
}

const NUMBERS: { name: "temperature" | "top_p" | "max_tokens" | "seed"; label: string; step: string; min: number; max?: number }[] = [
  { name: "temperature", label: "Temperature", step: "0.1", min: 0, max: 2 },
  { name: "top_p", label: "Top-p", step: "0.05", min: 0, max: 1 },
  { name: "max_tokens", label: "Maximum tokens", step: "1", min: 1 },
  { name: "seed", label: "Seed", step: "1", min: 0 },
];

function Settings({ chat }: { chat: ChatData }) {
  const { params } = chat;
  const set = (edit: Partial<Params>) => change(chat.id, (it) => ({ ...it, params: { ...it.params, ...edit } }));
  let toolsProblem: string | null = null;
  try {
    parseTools(params.tools);
  } catch (error) {
    toolsProblem = error instanceof Error ? error.message : String(error);
  }
  return (
    <div class="chat-settings">
      <Field label="System prompt">
        {(id) => <textarea id={id} rows={3} value={params.system} placeholder="None" onInput={(event) => set({ system: event.currentTarget.value })} />}
      </Field>
      <div class="field-row">
        {NUMBERS.map(({ name, label, ...range }) => (
          <Field label={label}>
            {(id) => <input id={id} type="number" inputMode="decimal" placeholder="default" {...range} value={params[name]} onInput={(event) => set({ [name]: event.currentTarget.value })} />}
          </Field>
        ))}
        <Field label="Reasoning">
          {(id) => (
            <select id={id} class="select" value={params.thinking} onChange={(event) => set({ thinking: event.currentTarget.value as Params["thinking"] })}>
              <option value="default">as the model does</option>
              <option value="on">on</option>
              <option value="off">off</option>
            </select>
          )}
        </Field>
      </div>
      <details class="tools-field" open={params.tools !== ""}>
        <summary>Tools</summary>
        <Field label="Definitions (JSON, as in OpenAI's API)">
          {(id) => <textarea id={id} rows={4} class="mono" spellcheck={false} value={params.tools} onInput={(event) => set({ tools: event.currentTarget.value })} />}
        </Field>
        {toolsProblem !== null && <p class="field-problem">{toolsProblem}</p>}
      </details>
      <div class="field-row">
        <Button icon="download" label="Export as Markdown" onClick={() => download(chat, "md")} />
        <Button icon="download" label="Export as JSON" onClick={() => download(chat, "json")} />
      </div>
    </div>
  );
}

function Thread({ chat }: { chat: ChatData }) {
  const box = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const isBusy = busy.value.has(chat.id);
  useEffect(() => {
    if (follows.current && box.current !== null) box.current.scrollTop = box.current.scrollHeight;
  }, [chat.messages, waiting.value]);
  useEffect(() => {
    follows.current = true;
  }, [chat.id]);
  return (
    <div
      ref={box}
      class="thread"
      tabIndex={0}
      role="log"
      aria-label="Messages"
      aria-busy={isBusy}
      onScroll={(event) => {
        const it = event.currentTarget;
        follows.current = it.scrollHeight - it.scrollTop - it.clientHeight < FOLLOW_PX;
      }}
    >
      <div class="thread-inner">
        {chat.messages.length === 0 && <Welcome chat={chat} />}
        {chat.messages.map((message, idx) => {
          const isLast = idx === chat.messages.length - 1;
          if (message.role === "user") return <Mine chat={chat} message={message} idx={idx} />;
          if (message.role === "tool") return <Result message={message} />;
          return <Answer chat={chat} message={message} idx={idx} isOpen={isLast && isBusy} isLast={isLast} />;
        })}
      </div>
    </div>
  );
}

const IDEAS = ["Tell me a short story about a rabbit with antlers.", "Explain tensor parallelism in three sentences.", "Write a haiku about two computers and one cable."];

function Welcome({ chat }: { chat: ChatData }) {
  const ranks = cluster.value?.models.find((it) => it.id === (chat.model || cluster.value?.default_model))?.num_ranks ?? 0;
  return (
    <div class="welcome">
      <img src="/assets/icon.svg" alt="" width="56" height="56" />
      <h2>Ask the cluster</h2>
      <p class="muted">{0 < ranks ? `${plural(ranks, "rank")} will answer together.` : "The model is loaded with the first question."}</p>
      <div class="ideas">
        {IDEAS.map((idea) => (
          <button type="button" class="idea" onClick={() => say(chat.id, idea)}>
            {idea}
          </button>
        ))}
      </div>
    </div>
  );
}

function Mine({ chat, message, idx }: { chat: ChatData; message: Message; idx: number }) {
  const [draft, setDraft] = useState<string | null>(null);
  if (draft !== null) {
    const send = () => {
      setDraft(null);
      if (draft.trim() !== "") sayAgain(chat.id, idx, draft);
    };
    return (
      <form
        class="mine editing"
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
      >
        <textarea rows={4} aria-label="Edit the message" value={draft} onInput={(event) => setDraft(event.currentTarget.value)} />
        <div class="dialog-actions">
          <Button label="Cancel" onClick={() => setDraft(null)} />
          <Button label="Send again" kind="main" submit disabled={busy.value.has(chat.id)} />
        </div>
      </form>
    );
  }
  return (
    <article class="mine" aria-label="You">
      <p class="bubble pre">{message.content}</p>
      <div class="message-actions">
        <CopyButton text={message.content} />
        <Button icon="edit" label="Edit" iconOnly disabled={busy.value.has(chat.id)} onClick={() => setDraft(message.content)} />
      </div>
    </article>
  );
}

function Result({ message }: { message: Message }) {
  return (
    <article class="tool-result" aria-label="Result of a tool">
      <p class="muted small">Result</p>
      <pre tabIndex={0}>{message.content}</pre>
    </article>
  );
}

interface AnswerProps {
  chat: ChatData;
  message: Message;
  idx: number;
  isOpen: boolean;
  isLast: boolean;
}

function Answer({ chat, message, idx, isOpen, isLast }: AnswerProps) {
  const stalled = isOpen ? waiting.value.get(chat.id) : undefined;
  const isEmpty = message.content === "" && message.reasoning === undefined && message.tool_calls === undefined;
  return (
    <article class="answer" aria-label="Answer">
      {message.reasoning !== undefined && <Reasoning text={message.reasoning} isOpen={isOpen && message.content === ""} />}
      {message.content !== "" && <Markdown text={message.content} />}
      {message.tool_calls?.map((call) => (
        <Call call={call} />
      ))}
      {isOpen && stalled === undefined && isEmpty && (
        <p class="thinking" role="status">
          <span class="dots" aria-hidden="true" />
          <span class="unseen">The model reads the prompt.</span>
        </p>
      )}
      {stalled !== undefined && (
        <p class="recovering" role="status">
          <span class="spinner" aria-hidden="true" />
          recovering, {Math.max(0, Math.round(stalled))} s
        </p>
      )}
      {message.error !== undefined && <Problem message={message.error} />}
      {!isOpen && message.finish === "tool_calls" && isLast && <Results chat={chat} calls={message.tool_calls ?? []} />}
      {!isOpen && (
        <footer class="answer-foot">
          <Numbers message={message} />
          <div class="message-actions">
            <CopyButton text={message.content} />
            <Button icon="again" label="Regenerate" iconOnly disabled={busy.value.has(chat.id)} onClick={() => regenerate(chat.id, idx)} />
          </div>
        </footer>
      )}
    </article>
  );
}

function Reasoning({ text, isOpen }: { text: string; isOpen: boolean }) {
  return (
    <details class="reasoning">
      <summary>
        <Icon name="chevron" />
        {isOpen ? "Reasoning…" : "Reasoning"}
      </summary>
      <div class="reasoning-text">
        <Markdown text={text} />
      </div>
    </details>
  );
}

/** The arguments of a call, indented if they are complete. */
function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function Call({ call }: { call: ToolCall }) {
  return (
    <div class="tool-call">
      <p class="small">
        <span class="muted">calls</span> <strong>{call.name}</strong>
      </p>
      <pre tabIndex={0} aria-label="Arguments">
        {pretty(call.arguments)}
      </pre>
    </div>
  );
}

function Results({ chat, calls }: { chat: ChatData; calls: ToolCall[] }) {
  const [texts, setTexts] = useState<Record<string, string>>({});
  return (
    <form
      class="results"
      onSubmit={(event) => {
        event.preventDefault();
        giveResults(
          chat.id,
          calls.map((call) => ({ tool_call_id: call.id, content: texts[call.id] ?? "" })),
        );
      }}
    >
      {calls.map((call) => (
        <Field label={`Result of ${call.name}`}>
          {(id) => <textarea id={id} rows={2} class="mono" value={texts[call.id] ?? ""} onInput={(event) => setTexts({ ...texts, [call.id]: event.currentTarget.value })} />}
        </Field>
      ))}
      <div class="dialog-actions">
        <Button label="Continue" kind="main" submit />
      </div>
    </form>
  );
}

function Numbers({ message }: { message: Message }) {
  const { figures, recoveries, finish } = message;
  const parts: string[] = [];
  if (figures !== undefined) {
    parts.push(`${digits(figures.rate)} tokens/s`, `${count(figures.completion_tokens)} tokens`);
    if (figures.first_token_s !== null) parts.push(`first after ${seconds(figures.first_token_s)}`);
    const share = 0 < figures.prompt_tokens ? figures.cached_tokens / figures.prompt_tokens : 0;
    parts.push(`prompt ${count(figures.prompt_tokens)}, ${percent(share)} cached`);
    if (0 < figures.reasoning_tokens) parts.push(`${count(figures.reasoning_tokens)} of reasoning`);
  }
  for (const took of recoveries ?? []) parts.push(`recovered in ${seconds(took)}`);
  if (finish === "length") parts.push("ended at the maximum length");
  if (finish === "stopped") parts.push("stopped");
  if (finish === "abort") parts.push("cancelled");
  return <p class="figures">{parts.join(" · ")}</p>;
}

function Composer({ chat }: { chat: ChatData }) {
  const [text, setText] = useState("");
  const area = useRef<HTMLTextAreaElement>(null);
  const isBusy = busy.value.has(chat.id);
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) area.current?.focus();
  }, []);
  useEffect(() => {
    const it = area.current;
    if (it === null) return;
    it.style.height = "auto";
    it.style.height = `${Math.min(it.scrollHeight, 200)}px`;
  }, [text]);
  const send = () => {
    if (text.trim() === "" || isBusy) return;
    say(chat.id, text);
    setText("");
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <div class="composer-box">
        <textarea
          ref={area}
          rows={1}
          aria-label="Message"
          placeholder="Message. Enter sends, Shift+Enter begins a line."
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              send();
            }
            if (event.key === "Escape" && isBusy) stop(chat.id);
          }}
        />
        {isBusy ? (
          <Button icon="stop" label="Stop" kind="main" iconOnly onClick={() => stop(chat.id)} />
        ) : (
          <Button icon="send" label="Send" kind="main" iconOnly submit disabled={text.trim() === ""} />
        )}
      </div>
    </form>
  );
}
