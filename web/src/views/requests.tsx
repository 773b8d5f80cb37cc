// Requests: those being answered, those that were, and how their time passed.

import { useEffect, useState } from "preact/hooks";
import { Refusal, call, message } from "../api";
import { clock, count, digits, plural, seconds, shortName, withHint } from "../format";
import { type Recovery, cluster, notify } from "../state";
import { Badge, Button, Card, Empty, Problem, type Tone } from "../ui/parts";

/** Time between two requests for the lists, in milliseconds. */
const POLL_MS = 1500;

interface Open {
  request_id: string;
  answer_id: string | null;
  kind: string;
  model: string;
  key: string | null;
  phase: string;
  prompt_tokens: number;
  completion_tokens: number;
  max_tokens: number;
  elapsed_s: number;
  tokens_per_second: number;
}

interface Past {
  request_id: string;
  timestamp: number;
  kind: string;
  model_id: string;
  key: string | null;
  prompt_tokens: number;
  generated_tokens: number;
  cached_tokens: number;
  wall_time_s: number;
  tokens_per_second: number;
  status: string;
  error_message: string | null;
  finish_reason: string | null;
  is_stream: boolean;
  miss_reason: string | null;
  queue_s: number;
  time_to_first_token_s: number | null;
  decode_s: number;
}

interface Failure {
  timestamp: number;
  request_id: string;
  kind: string;
  key: string | null;
  code: string;
  status: number;
  message: string;
}

interface Lists {
  open: Open[];
  past: Past[];
  errors: Failure[];
}

async function load(): Promise<Lists> {
  const [status, past, errors] = await Promise.all([
    call<{ requests: Open[] }>("GET", "/v1/status"),
    call<{ requests: Past[] }>("GET", "/requests?n=200"),
    call<{ errors: Failure[] }>("GET", "/errors"),
  ]);
  return { open: status.requests, past: past.requests, errors: errors.errors };
}

export function Requests() {
  const [lists, setLists] = useState<Lists | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  useEffect(() => {
    let isOver = false;
    const again = async () => {
      while (!isOver) {
        try {
          if (!document.hidden) {
            const next = await load();
            if (!isOver) setLists(next);
            setProblem(null);
          }
        } catch (error) {
          setProblem(error);
          if (error instanceof Refusal && error.status === 403) return;
        }
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      }
    };
    void again();
    return () => {
      isOver = true;
    };
  }, []);
  if (problem instanceof Refusal && problem.status === 403) {
    return <Problem message={message(problem)} />;
  }
  if (lists === null) return problem === null ? <Empty>Loading…</Empty> : <Problem message={message(problem)} />;
  return (
    <div class="stack">
      <OpenRequests list={lists.open} />
      <PastRequests list={lists.past} />
      <Errors list={lists.errors} />
    </div>
  );
}

function OpenRequests({ list }: { list: Open[] }) {
  const cancel = async (it: Open) => {
    try {
      await call("DELETE", `/v1/requests/${encodeURIComponent(it.request_id)}`);
      notify("good", `The request ${it.request_id} is cancelled.`);
    } catch (error) {
      notify("bad", message(error));
    }
  };
  return (
    <Card title="Now" aside={<span class="muted">{plural(list.length, "request")}</span>}>
      {list.length === 0 && <Empty>Nothing is being computed.</Empty>}
      <ul class="rows">
        {list.map((it) => (
          <li class="row" key={it.request_id}>
            <div class="row-main">
              <p class="ellipsis">
                <strong>{it.kind}</strong> <span class="muted">{shortName(it.model)}</span>
                {it.key !== null && <span class="muted"> · {it.key}</span>}
              </p>
              <p class="muted small">
                {seconds(it.elapsed_s)} · prompt {count(it.prompt_tokens)} · {count(it.completion_tokens)} of at most {count(it.max_tokens)} tokens ·{" "}
                {digits(it.tokens_per_second)} tokens/s
              </p>
            </div>
            <Badge tone={it.phase === "generating" ? "good" : "busy"}>{it.phase}</Badge>
            <Button icon="close" label={`Cancel ${it.request_id}`} iconOnly onClick={() => void cancel(it)} />
          </li>
        ))}
      </ul>
    </Card>
  );
}

interface Filter {
  text: string;
  status: string;
  kind: string;
}

function matches(it: Past, filter: Filter): boolean {
  const words = [it.request_id, it.model_id, it.key ?? "", it.kind, it.error_message ?? ""].join(" ").toLowerCase();
  return (
    (filter.status === "" || it.status === filter.status) && (filter.kind === "" || it.kind === filter.kind) && words.includes(filter.text.trim().toLowerCase())
  );
}

function PastRequests({ list }: { list: Past[] }) {
  const [filter, setFilter] = useState<Filter>({ text: "", status: "", kind: "" });
  const [shown, setShown] = useState<string | null>(null);
  const kinds = [...new Set(list.map((it) => it.kind))].sort();
  const found = list.filter((it) => matches(it, filter));
  const longest = Math.max(0.001, ...found.map((it) => it.wall_time_s));
  const recoveries = cluster.value?.recoveries ?? [];
  return (
    <Card title="Past" aside={<span class="muted">{found.length === list.length ? plural(list.length, "request") : `${found.length} of ${list.length}`}</span>}>
      <div class="filters">
        <input type="search" aria-label="Search" placeholder="Search by id, model, key or error" value={filter.text} onInput={(event) => setFilter({ ...filter, text: event.currentTarget.value })} />
        <select class="select" aria-label="Status" value={filter.status} onChange={(event) => setFilter({ ...filter, status: event.currentTarget.value })}>
          <option value="">any status</option>
          {["ok", "error", "timeout", "cancelled"].map((it) => (
            <option value={it}>{it}</option>
          ))}
        </select>
        <select class="select" aria-label="Kind" value={filter.kind} onChange={(event) => setFilter({ ...filter, kind: event.currentTarget.value })}>
          <option value="">any kind</option>
          {kinds.map((it) => (
            <option value={it}>{it}</option>
          ))}
        </select>
      </div>
      <p class="legends">
        <span class="legend track">queued</span>
        <span class="legend second">prefill</span>
        <span class="legend accent">decode</span>
        <span class="legend warn">waiting for ranks</span>
      </p>
      {found.length === 0 && <Empty>No request.</Empty>}
      <ul class="waterfall">
        {found.map((it) => (
          <Row
            key={`${it.request_id} ${it.timestamp}`}
            it={it}
            longest={longest}
            recoveries={recoveries}
            isShown={shown === it.request_id}
            onToggle={() => setShown(shown === it.request_id ? null : it.request_id)}
          />
        ))}
      </ul>
    </Card>
  );
}

function toneOfStatus(status: string): Tone {
  return status === "ok" ? "good" : status === "cancelled" ? "idle" : "bad";
}

/** How a request's time passed, in seconds. Waiting for ranks is a part of the other times. */
function phases(it: Past, recoveries: Recovery[]) {
  const prefill = it.time_to_first_token_s === null ? 0 : Math.max(0, it.time_to_first_token_s - it.queue_s);
  const begin = it.timestamp - it.wall_time_s;
  const waits = recoveries
    .filter((lost) => lost.model === it.model_id)
    .map((lost) => ({ from: Math.max(lost.at, begin), to: Math.min(lost.at + (lost.seconds ?? Infinity), it.timestamp) }))
    .filter(({ from, to }) => from < to)
    .map(({ from, to }) => ({ from: from - begin, to: to - begin }));
  return { queue: it.queue_s, prefill, decode: it.decode_s, waits };
}

interface RowProps {
  it: Past;
  longest: number;
  recoveries: Recovery[];
  isShown: boolean;
  onToggle: () => void;
}

function Row({ it, longest, recoveries, isShown, onToggle }: RowProps) {
  const { queue, prefill, decode, waits } = phases(it, recoveries);
  const waited = waits.reduce((sum, { from, to }) => sum + to - from, 0);
  const share = (time: number) => `${(100 * time) / longest}%`;
  const words = `queued ${seconds(queue)}, prefill ${seconds(prefill)}, decode ${seconds(decode)}${0 < waited ? `, waiting for ranks ${seconds(waited)}` : ""}`;
  return (
    <li class={`fall ${isShown ? "shown" : ""}`}>
      <button type="button" class="fall-row" aria-expanded={isShown} onClick={onToggle}>
        <span class="fall-time">{clock(it.timestamp)}</span>
        <span class="fall-kind ellipsis">{it.kind}</span>
        <span class="fall-bar" role="img" aria-label={words}>
          <span class="bar-part line" style={{ width: share(queue) }} />
          <span class="bar-part second" style={{ width: share(prefill) }} />
          <span class="bar-part accent" style={{ width: share(decode) }} />
          {waits.map(({ from, to }) => (
            <span class="bar-part warn over" style={{ left: share(from), width: share(to - from) }} />
          ))}
        </span>
        <span class="fall-total">{seconds(it.wall_time_s)}</span>
        <Badge tone={toneOfStatus(it.status)}>{it.status}</Badge>
      </button>
      {isShown && <Details it={it} words={words} />}
    </li>
  );
}

function Details({ it, words }: { it: Past; words: string }) {
  const facts: [string, string][] = [
    ["Request", it.request_id],
    ["Model", it.model_id],
    ["Key", it.key ?? "none"],
    ["Tokens", `prompt ${count(it.prompt_tokens)} (${count(it.cached_tokens)} cached), answer ${count(it.generated_tokens)}`],
    ["Speed", `${digits(it.tokens_per_second)} tokens/s, first token after ${seconds(it.time_to_first_token_s)}`],
    ["Time", words],
    ["End", it.finish_reason ?? it.status],
  ];
  if (it.miss_reason !== null) facts.push(["Cache", it.miss_reason.replaceAll("_", " ")]);
  return (
    <div class="fall-details">
      <dl class="facts">
        {facts.map(([name, value]) => (
          <>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </>
        ))}
      </dl>
      {it.error_message !== null && <Problem message={it.error_message} />}
    </div>
  );
}

function Errors({ list }: { list: Failure[] }) {
  return (
    <Card title="Errors" aside={<span class="muted">{plural(list.length, "error")}</span>}>
      {list.length === 0 && <Empty>No error of the server, and no request was refused for lack of capacity.</Empty>}
      <ul class="rows">
        {list.slice(0, 20).map((it) => {
          const { text, hints } = withHint(it.message);
          return (
            <li class="row">
              <div class="row-main">
                <p class="pre">{text}</p>
                {hints.map((hint) => (
                  <p class="hint small">{hint}</p>
                ))}
                <p class="muted small">
                  {clock(it.timestamp)} · {it.kind} · {it.code}
                </p>
              </div>
              <Badge tone="bad">{it.status}</Badge>
            </li>
          );
        })}
      </ul>
    </Card>
  );
}
