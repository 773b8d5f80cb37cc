// Requests to the server. The key lives in the tab's session and is sent as a header, never in an
// address.

import { signal } from "@preact/signals";

const KEY_NAME = "jackalope.key";

/** Maximum time for a request that is not streamed, in milliseconds. */
const TIMEOUT_MS = 30_000;

/** Maximum length of a line of a stream. */
const LINE_CHARS_MAX = 4 << 20;

/** The key of this tab; empty if there is none. */
export const apiKey = signal(sessionStorage.getItem(KEY_NAME) ?? "");

/** Why the page asks for a key, if it does. */
export const keyWanted = signal<string | null>(null);

export function setKey(key: string) {
  apiKey.value = key.trim();
  keyWanted.value = null;
  if (apiKey.value === "") sessionStorage.removeItem(KEY_NAME);
  else sessionStorage.setItem(KEY_NAME, apiKey.value);
}

/** A refusal of the server, or a failure to reach it (status 0). */
export class Refusal extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string | null = null,
  ) {
    super(message);
  }
}

function headers(body: unknown): Record<string, string> {
  const all: Record<string, string> = { accept: "application/json" };
  if (apiKey.value !== "") all["authorization"] = `Bearer ${apiKey.value}`;
  if (body !== undefined) all["content-type"] = "application/json";
  return all;
}

async function refused(response: Response): Promise<Refusal> {
  let message = `the server answered with status ${response.status}`;
  let code: string | null = null;
  try {
    const body: unknown = await response.json();
    const error = field(body, "error");
    if (typeof error === "string") message = error;
    const found = field(error, "message");
    if (typeof found === "string") message = found;
    const name = field(error, "code");
    if (typeof name === "string") code = name;
  } catch {
    // No JSON: the status has to do.
  }
  if (response.status === 401) {
    keyWanted.value = apiKey.value === "" ? "This server requires a key." : "The server does not accept this key.";
  }
  return new Refusal(message, response.status, code);
}

export function field(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>)[name] : undefined;
}

async function send(method: string, path: string, body: unknown, abort: AbortSignal): Promise<Response> {
  let response: Response;
  try {
    const init: RequestInit = { method, headers: headers(body), signal: abort, cache: "no-store", credentials: "omit" };
    if (body !== undefined) init.body = JSON.stringify(body);
    response = await fetch(path, init);
  } catch (error) {
    if (abort.aborted && abort.reason?.name !== "TimeoutError") throw error;
    throw new Refusal("the server cannot be reached", 0);
  }
  return response;
}

/** Sends a request and returns the answer. Statuses in `accepted` are answers too. */
export async function call<T>(method: string, path: string, body?: unknown, accepted: number[] = []): Promise<T> {
  const response = await send(method, path, body, AbortSignal.timeout(TIMEOUT_MS));
  if (!response.ok && !accepted.includes(response.status)) throw await refused(response);
  return (await response.json()) as T;
}

/** Sends a request that may take long, and returns the answer. */
export async function callSlowly<T>(method: string, path: string, body: unknown, abort: AbortSignal): Promise<T> {
  const response = await send(method, path, body, abort);
  if (!response.ok) throw await refused(response);
  return (await response.json()) as T;
}

/** Streams the data of server-sent events. */
export async function* events(method: string, path: string, body: unknown, abort: AbortSignal): AsyncGenerator<unknown> {
  const response = await send(method, path, body, abort);
  if (!response.ok) throw await refused(response);
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      if (LINE_CHARS_MAX < rest.length) throw new Refusal("the server sent a line without an end", 0);
      let end: number;
      while (0 <= (end = rest.indexOf("\n"))) {
        const line = rest.slice(0, end).trimEnd();
        rest = rest.slice(end + 1);
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const value: unknown = JSON.parse(data);
        const error = field(value, "error");
        if (error !== undefined && error !== null) {
          const message = field(error, "message") ?? error;
          const code = field(error, "code");
          throw new Refusal(String(message), 0, typeof code === "string" ? code : null);
        }
        yield value;
      }
    }
  } catch (error) {
    if (error instanceof Refusal || abort.aborted) throw error;
    throw new Refusal("the connection to the server ended in the middle of the answer", 0);
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The message of an error, as people read it. */
export function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
