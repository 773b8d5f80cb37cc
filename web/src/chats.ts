// Conversations: kept in the browser, answered by the server.

import { effect, signal } from "@preact/signals";
import { Refusal, events, field, message } from "./api";
import { cluster, down, notify, poll } from "./state";

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

/** Figures of an answer. Times in seconds. */
export interface Figures {
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  reasoning_tokens: number;
  first_token_s: number | null;
  total_s: number;
  rate: number;
}

export interface Message {
  role: "user" | "assistant" | "tool";
  content: string;
  reasoning?: string;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
  model?: string;
  error?: string;
  finish?: string;
  /** Recoveries during the answer: how long the ranks were down, in seconds. */
  recoveries?: number[];
  figures?: Figures;
}

export interface Params {
  system: string;
  temperature: string;
  top_p: string;
  max_tokens: string;
  seed: string;
  thinking: "default" | "on" | "off";
  tools: string;
}

export interface Chat {
  id: string;
  title: string;
  updated: number;
  model: string;
  params: Params;
  messages: Message[];
}

const STORE = "jackalope.chats";

/** Maximum number of conversations; the oldest is dropped first. */
const CHATS_MAX = 100;

/** Time between two writes to the store while an answer arrives, in milliseconds. */
const SAVE_MS = 1000;

const TITLE_CHARS = 48;

export const NO_PARAMS: Params = { system: "", temperature: "", top_p: "", max_tokens: "", seed: "", thinking: "default", tools: "" };

function isChat(value: unknown): value is Chat {
  return typeof field(value, "id") === "string" && Array.isArray(field(value, "messages")) && typeof field(value, "title") === "string";
}

function stored(): Chat[] {
  try {
    const list: unknown = JSON.parse(localStorage.getItem(STORE) ?? "[]");
    return Array.isArray(list) ? list.filter(isChat).map((it) => ({ ...it, params: { ...NO_PARAMS, ...it.params } })) : [];
  } catch {
    return [];
  }
}

export const chats = signal<Chat[]>(stored());
export const current = signal<string | null>(chats.value[0]?.id ?? null);

let saving: ReturnType<typeof setTimeout> | null = null;
effect(() => {
  const list = chats.value;
  if (saving !== null) return;
  saving = setTimeout(() => {
    saving = null;
    save(chats.value);
  }, SAVE_MS);
  return void list;
});
addEventListener("pagehide", () => save(chats.value));

function save(list: Chat[]) {
  try {
    localStorage.setItem(STORE, JSON.stringify(list.filter((it) => 0 < it.messages.length || it.params.system !== "")));
  } catch {
    notify("bad", "The browser has no room for more conversations. Delete old ones, or export them.");
  }
}

export function newChat(): string {
  const empty = chats.value.find((it) => it.messages.length === 0);
  const latest = chats.value[0];
  const id = empty?.id ?? crypto.randomUUID?.() ?? String(Date.now() + Math.random());
  if (empty === undefined) {
    const chat: Chat = { id, title: "New conversation", updated: Date.now(), model: latest?.model ?? "", params: latest?.params ?? NO_PARAMS, messages: [] };
    chats.value = [chat, ...chats.value].slice(0, CHATS_MAX);
  }
  current.value = id;
  return id;
}

export function change(id: string, edit: (chat: Chat) => Chat) {
  chats.value = chats.value.map((it) => (it.id === id ? edit(it) : it));
}

export function remove(id: string) {
  stop(id);
  chats.value = chats.value.filter((it) => it.id !== id);
  if (current.value === id) current.value = chats.value[0]?.id ?? null;
}

/** The conversations with an answer under way. */
export const busy = signal<ReadonlyMap<string, AbortController>>(new Map());

/** How long the current answer has waited for ranks, by conversation; in seconds. */
export const waiting = signal<ReadonlyMap<string, number>>(new Map());

export function stop(id: string) {
  busy.value.get(id)?.abort();
}

function setIn<V>(map: ReadonlyMap<string, V>, key: string, value: V | null): ReadonlyMap<string, V> {
  const next = new Map(map);
  if (value === null) next.delete(key);
  else next.set(key, value);
  return next;
}

function editLast(id: string, edit: (last: Message) => Message) {
  change(id, (chat) => ({ ...chat, updated: Date.now(), messages: chat.messages.map((it, idx) => (idx === chat.messages.length - 1 ? edit(it) : it)) }));
}

/** The number that was typed; none if the field is empty. */
function number(text: string): number | undefined {
  const value = Number(text);
  return text.trim() === "" || !Number.isFinite(value) ? undefined : value;
}

/** The definitions of tools that were typed. */
export function parseTools(text: string): unknown[] | undefined {
  if (text.trim() === "") return undefined;
  const tools: unknown = JSON.parse(text);
  if (!Array.isArray(tools)) throw new Error("tools are a list: [{\"type\": \"function\", …}]");
  return tools;
}

function body(chat: Chat): Record<string, unknown> {
  const { params } = chat;
  const messages: Record<string, unknown>[] = params.system.trim() === "" ? [] : [{ role: "system", content: params.system }];
  for (const it of chat.messages.slice(0, -1)) {
    if (it.role === "tool") messages.push({ role: "tool", tool_call_id: it.tool_call_id, content: it.content });
    else if (it.tool_calls !== undefined && 0 < it.tool_calls.length) {
      const tool_calls = it.tool_calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
      messages.push({ role: it.role, content: it.content, tool_calls });
    } else messages.push({ role: it.role, content: it.content });
  }
  const all = {
    model: chat.model === "" ? "default" : chat.model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    temperature: number(params.temperature),
    top_p: number(params.top_p),
    max_tokens: number(params.max_tokens),
    seed: number(params.seed),
    enable_thinking: params.thinking === "default" ? undefined : params.thinking === "on",
    tools: parseTools(params.tools),
  };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined));
}

/** Adds a message of a person, and answers it. */
export function say(id: string, text: string) {
  change(id, (chat) => ({
    ...chat,
    title: chat.messages.length === 0 ? title(text) : chat.title,
    messages: [...chat.messages, { role: "user", content: text }],
  }));
  void answer(id);
}

function title(text: string): string {
  const line = text.trim().split("\n")[0] ?? "";
  return line.length <= TITLE_CHARS ? line : `${line.slice(0, TITLE_CHARS - 1)}…`;
}

/** Replaces a message of a person; what followed is dropped and answered anew. */
export function sayAgain(id: string, idx: number, text: string) {
  change(id, (chat) => ({ ...chat, messages: [...chat.messages.slice(0, idx), { role: "user", content: text }] }));
  void answer(id);
}

/** Drops an answer and everything after it, and answers anew. */
export function regenerate(id: string, idx: number) {
  change(id, (chat) => ({ ...chat, messages: chat.messages.slice(0, idx) }));
  void answer(id);
}

/** Adds the results of tools, and lets the model go on. */
export function giveResults(id: string, results: { tool_call_id: string; content: string }[]) {
  change(id, (chat) => ({ ...chat, messages: [...chat.messages, ...results.map((it): Message => ({ role: "tool", ...it }))] }));
  void answer(id);
}

/** Streams an answer to the conversation. */
async function answer(id: string) {
  if (busy.value.has(id)) return;
  const abort = new AbortController();
  busy.value = setIn(busy.value, id, abort);
  change(id, (chat) => ({ ...chat, updated: Date.now(), messages: [...chat.messages, { role: "assistant", content: "" }] }));
  const chat = chats.value.find((it) => it.id === id);
  if (chat === undefined) return;
  const model = modelOf(chat);
  const stopWatching = watchRecoveries(model, id);
  // The last overview is at most as old as the pause between two of them.
  const serverTime = cluster.value?.time ?? Infinity;
  const began = performance.now();
  let first: number | null = null;
  try {
    for await (const event of events("POST", "/v1/chat/completions", body(chat), abort.signal)) {
      if (take(id, event) && first === null) first = (performance.now() - began) / 1000;
      const usage = field(event, "usage");
      if (usage !== null && usage !== undefined) note(id, usage, { first, total: (performance.now() - began) / 1000 });
    }
  } catch (error) {
    const said = abort.signal.aborted ? { finish: "stopped" } : { error: describe(error) };
    editLast(id, (last) => ({ ...last, ...said }));
  } finally {
    stopWatching();
    busy.value = setIn(busy.value, id, null);
    waiting.value = setIn(waiting.value, id, null);
  }
  const recoveries = await recoveriesSince(model, serverTime);
  if (0 < recoveries.length) editLast(id, (last) => (last.role === "assistant" ? { ...last, recoveries } : last));
}

function describe(error: unknown): string {
  if (error instanceof Refusal && error.status === 401) return `${message(error)}\nhint: enter a key at the top of the page`;
  return message(error);
}

/** Adds an event to the answer; true if it has text. */
function take(id: string, event: unknown): boolean {
  const choices = field(event, "choices");
  const choice: unknown = Array.isArray(choices) ? choices[0] : undefined;
  const delta = field(choice, "delta");
  const text = (name: string) => {
    const value = field(delta, name);
    return typeof value === "string" ? value : "";
  };
  const content = text("content");
  const reasoning = text("reasoning_content") || text("reasoning");
  const calls = field(delta, "tool_calls");
  const finish = field(choice, "finish_reason");
  const model = field(event, "model");
  const hasCalls = Array.isArray(calls) && 0 < calls.length;
  if (content === "" && reasoning === "" && !hasCalls && typeof finish !== "string") return false;
  editLast(id, (last) => ({
    ...last,
    content: last.content + content,
    ...(reasoning === "" ? {} : { reasoning: (last.reasoning ?? "") + reasoning }),
    ...(hasCalls ? { tool_calls: mergeCalls(last.tool_calls ?? [], calls) } : {}),
    ...(typeof finish === "string" ? { finish } : {}),
    ...(typeof model === "string" ? { model } : {}),
  }));
  return content !== "" || reasoning !== "" || hasCalls;
}

function mergeCalls(known: ToolCall[], deltas: unknown[]): ToolCall[] {
  const merged = known.map((it) => ({ ...it }));
  for (const delta of deltas) {
    const idx = Number(field(delta, "index") ?? merged.length);
    const call = (merged[idx] ??= { id: "", name: "", arguments: "" });
    const fn = field(delta, "function");
    const string = (value: unknown) => (typeof value === "string" ? value : "");
    call.id ||= string(field(delta, "id"));
    call.name ||= string(field(fn, "name"));
    call.arguments += string(field(fn, "arguments"));
  }
  return merged;
}

function note(id: string, usage: unknown, times: { first: number | null; total: number }) {
  const count = (of: unknown, name: string) => Number(field(of, name) ?? 0);
  const completion = count(usage, "completion_tokens");
  const decoding = times.first === null ? times.total : times.total - times.first;
  const figures: Figures = {
    prompt_tokens: count(usage, "prompt_tokens"),
    completion_tokens: completion,
    cached_tokens: count(field(usage, "prompt_tokens_details"), "cached_tokens"),
    reasoning_tokens: count(field(usage, "completion_tokens_details"), "reasoning_tokens"),
    first_token_s: times.first,
    total_s: times.total,
    rate: 1 < completion && 0 < decoding ? (completion - 1) / decoding : 0,
  };
  editLast(id, (last) => ({ ...last, figures }));
}

/** Shows how long the answer waits for ranks. */
function watchRecoveries(model: string, id: string): () => void {
  return effect(() => {
    const lost = down.value;
    const isOurs = lost !== null && (lost.id === model || lost.aliases.includes(model));
    waiting.value = setIn(waiting.peek(), id, isOurs ? (lost.down?.seconds ?? 0) : null);
  });
}

/** How long the ranks of a model were down since a time of the server's clock, one number for each loss. */
async function recoveriesSince(model: string, time: number): Promise<number[]> {
  try {
    await poll();
  } catch {
    return [];
  }
  const list = cluster.value?.recoveries.filter((it) => it.model === model && time < it.at) ?? [];
  return list.map((it) => it.seconds).filter((it) => it !== null);
}

/** Id of the model that answers. */
function modelOf(chat: Chat): string {
  const wanted = chat.model === "" ? "default" : chat.model;
  const all = cluster.value;
  const known = all?.models.find((it) => it.id === wanted || it.aliases.includes(wanted));
  return known?.id ?? all?.default_model ?? wanted;
}

/** Saves a conversation as a file. */
export function download(chat: Chat, format: "json" | "md") {
  const text = format === "json" ? JSON.stringify({ title: chat.title, model: chat.model, params: chat.params, messages: chat.messages }, null, 2) : asMarkdown(chat);
  const blob = new Blob([text], { type: format === "json" ? "application/json" : "text/markdown" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${chat.title.replace(/[^\p{L}\p{N} _-]+/gu, "").trim() || "conversation"}.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function asMarkdown(chat: Chat): string {
  const parts = [`# ${chat.title}`];
  if (chat.params.system.trim() !== "") parts.push(`**System**\n\n${chat.params.system}`);
  for (const it of chat.messages) {
    parts.push(`**${it.role === "user" ? "You" : it.role === "tool" ? "Tool" : (it.model ?? "Assistant")}**\n\n${it.content}`);
    for (const call of it.tool_calls ?? []) parts.push(`\`${call.name}(${call.arguments})\``);
  }
  return `${parts.join("\n\n")}\n`;
}
