// Machines: their ranks, links and memory, and what a diagnosis finds.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, callSlowly, message } from "../api";
import { bytes, count, digits, duration, percent, plural, seconds, shortName } from "../format";
import { type Link, type Machine, type Rank, cluster } from "../state";
import { holds, rate, transport } from "../ui/graph";
import { Badge, Button, Card, CopyButton, Empty, Problem, type Tone } from "../ui/parts";
import { MachineMemory } from "./overview";

/** Longest time that a diagnosis may take, in milliseconds. */
const DIAGNOSIS_MS = 60_000;

interface Finding {
  severity: "ok" | "note" | "warn" | "error";
  code: string;
  node: string | null;
  about: string;
  found: string;
  explain: string;
  type_this: string[];
}

interface Diagnosis {
  ok: boolean;
  error?: string;
  findings?: Finding[];
  nodes?: { name: string; error?: string; report?: Record<string, unknown> }[];
}

export function Machines() {
  const now = cluster.value;
  if (now === null) return <Empty>Waiting for the server…</Empty>;
  return (
    <div class="stack">
      {now.machines.length === 0 && <Empty>No ranks run. A request loads the model.</Empty>}
      {now.machines.map((machine) => (
        <MachineCard key={machine.name} machine={machine} />
      ))}
      <Links links={now.links} />
      <Doctor />
      <Log />
    </div>
  );
}

function MachineCard({ machine }: { machine: Machine }) {
  const devices = [...new Set(machine.ranks.map((it) => it.device).filter((it) => it !== null))].join(", ");
  return (
    <Card title={machine.name} aside={<span class="muted">{[devices, plural(machine.ranks.length, "rank")].filter((it) => it !== "").join(" · ")}</span>}>
      <MachineMemory machine={machine} isNamed={false} />
      <div class="table-wrap" tabIndex={0} role="region" aria-label={`Ranks of ${machine.name}`}>
        <table>
          <thead>
            <tr>
              {["Rank", "Model", "Holds", "Phase", "Transport", "Weights", "KV cache", "Round trip", "Steps", "Communication", "Process"].map((it) => (
                <th scope="col">{it}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {machine.ranks.map((rank) => (
              <RankRow rank={rank} />
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

function toneOfPhase(rank: Rank): Tone {
  if (rank.phase === "idle" || rank.phase === "computing") return "good";
  return rank.phase === "loading" ? "busy" : "warn";
}

function RankRow({ rank }: { rank: Rank }) {
  const share = 0 < rank.computing_us ? rank.communicating_us / rank.computing_us : null;
  return (
    <tr>
      <th scope="row">{rank.rank}</th>
      <td title={rank.model}>{shortName(rank.model)}</td>
      <td>{holds(rank)}</td>
      <td>
        <Badge tone={toneOfPhase(rank)}>{rank.phase}</Badge>
      </td>
      <td>{transport(rank) ?? "–"}</td>
      <td>{bytes(rank.weights_bytes)}</td>
      <td>{bytes(rank.kv_bytes)}</td>
      <td>{rank.round_trip_us === null ? "–" : seconds(rank.round_trip_us / 1e6)}</td>
      <td>{count(rank.steps)}</td>
      <td title={`sent ${bytes(rank.sent_bytes)}, received ${bytes(rank.received_bytes)}`}>{share === null ? "–" : `${percent(share)} of the time`}</td>
      <td>{rank.pid ?? "–"}</td>
    </tr>
  );
}

function Links({ links }: { links: Link[] }) {
  if (links.length === 0) return null;
  return (
    <Card title="Links">
      <ul class="rows">
        {links.map((link) => (
          <li class="row">
            <div class="row-main">
              <p>{link.between ?? `rank ${link.ranks?.[0]} on ${link.machines?.[0]} – rank ${link.ranks?.[1]} on ${link.machines?.[1]}`}</p>
              <p class="muted small">
                {link.broken !== null
                  ? `broken for ${duration(link.broken.seconds)}: ${link.broken.reason}`
                  : [shortName(link.model), rate(link), link.encrypted === true ? "encrypted" : link.encrypted === false ? "not encrypted" : null].filter((it) => it !== null).join(" · ")}
              </p>
            </div>
            {link.broken === null ? <Badge tone="good">up</Badge> : <Badge tone="bad">broken</Badge>}
          </li>
        ))}
      </ul>
    </Card>
  );
}

const TONES: Record<Finding["severity"], Tone> = { ok: "good", note: "busy", warn: "warn", error: "bad" };
const ORDER: Finding["severity"][] = ["error", "warn", "note", "ok"];

function Doctor() {
  const [found, setFound] = useState<Diagnosis | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const examine = async () => {
    setBusy(true);
    setProblem(null);
    try {
      const next = await callSlowly<Diagnosis>("GET", "/v1/diagnosis", undefined, AbortSignal.timeout(DIAGNOSIS_MS));
      if (next.error !== undefined) setProblem(next.error);
      setFound(next);
    } catch (error) {
      setProblem(message(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Card title="Diagnosis" aside={<Button label={isBusy ? "Examining…" : "Examine the machines"} kind="main" disabled={isBusy} onClick={() => void examine()} />}>
      {problem !== null && <Problem message={problem} />}
      {found === null && problem === null && (
        <Empty>
          Examines every machine as <code>jackalope doctor</code> does: versions, memory, links, and settings. It takes up to 20 seconds.
        </Empty>
      )}
      {found?.nodes !== undefined && 0 < found.nodes.length && <Versions nodes={found.nodes} />}
      <Findings list={found?.findings ?? []} />
    </Card>
  );
}

interface LogLine {
  number: number;
  text: string;
}

/** Time between two requests for new lines of the log, in milliseconds. */
const LOG_INTERVAL_MS = 1500;

/** Maximum number of lines that the page keeps. */
const LOG_LINES_MAX = 1000;

/** Distance from the end within which the log follows new lines, in pixels. */
const NEAR_END_PX = 40;

/** The log of the server, which has the lines of all ranks and agents; it is read while it is open. */
function Log() {
  const [isOpen, setOpen] = useState(false);
  const [lines, setLines] = useState<LogLine[]>([]);
  const [words, setWords] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const box = useRef<HTMLPreElement>(null);
  const last = useRef(0);
  useEffect(() => {
    if (!isOpen) return;
    let isStopped = false;
    let timer = 0;
    const read = async () => {
      try {
        const { lines: added } = await call<{ lines: LogLine[] }>("GET", `/v1/logs?after=${last.current}`);
        if (isStopped) return;
        last.current = added.at(-1)?.number ?? last.current;
        if (0 < added.length) setLines((known) => [...known, ...added].slice(-LOG_LINES_MAX));
        setProblem(null);
      } catch (error) {
        if (isStopped) return;
        setProblem(message(error));
      }
      timer = window.setTimeout(() => void read(), LOG_INTERVAL_MS);
    };
    void read();
    return () => {
      isStopped = true;
      window.clearTimeout(timer);
    };
  }, [isOpen]);
  const isAtEnd = box.current === null || box.current.scrollHeight - box.current.scrollTop - box.current.clientHeight < NEAR_END_PX;
  useEffect(() => {
    if (box.current !== null && isAtEnd) box.current.scrollTop = box.current.scrollHeight;
  });
  const wanted = words.toLowerCase();
  const shown = lines.filter((it) => it.text.toLowerCase().includes(wanted));
  return (
    <Card title="Log" aside={<Button label={isOpen ? "Close the log" : "Open the log"} expanded={isOpen} onClick={() => setOpen(!isOpen)} />}>
      {!isOpen && <Empty>The last lines of the server, its ranks and its agents on all machines.</Empty>}
      {isOpen && problem !== null && <Problem message={problem} />}
      {isOpen && (
        <>
          <input type="search" aria-label="Only lines with" placeholder="Only lines with: rank=1, a machine, WARN" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
          <pre class="log" ref={box} tabIndex={0} role="log" aria-label="Log">
            {shown.map((it) => `${it.text}\n`).join("")}
          </pre>
        </>
      )}
    </Card>
  );
}

/** What is shown of a machine's report: the field, and its name. */
const FACTS: [field: string, name: string][] = [
  ["os", "System"],
  ["chip", "Chip"],
  ["cores", "Cores"],
  ["total_bytes", "Memory"],
  ["free_bytes", "Free memory"],
  ["disk_free_bytes", "Free disk"],
  ["load_percent", "Load"],
  ["thermal", "Thermal state"],
  ["jackalope", "Jackalope"],
  ["mlx", "MLX"],
];

/** The facts of a report that can be shown, by field. */
function plain(report: Record<string, unknown> | undefined): Map<string, string> {
  const facts = new Map<string, string>();
  const nested = report?.["facts"];
  const all = { ...report, ...(typeof nested === "object" ? nested : {}) };
  for (const [name, value] of Object.entries(all)) {
    if (typeof value === "string" && value !== "") facts.set(name, value);
    if (typeof value === "number") facts.set(name, name.endsWith("bytes") ? bytes(value) : name.endsWith("percent") ? `${digits(value)} %` : digits(value));
  }
  return facts;
}

function Versions({ nodes }: { nodes: NonNullable<Diagnosis["nodes"]> }) {
  const facts = nodes.map((it) => plain(it.report));
  const shown = FACTS.filter(([field]) => facts.some((it) => it.has(field)));
  if (shown.length === 0) return null;
  return (
    <div class="table-wrap" tabIndex={0} role="region" aria-label="Versions">
      <table>
        <thead>
          <tr>
            <th scope="col">Machine</th>
            {shown.map(([, name]) => (
              <th scope="col">{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {nodes.map((node, idx) => (
            <tr>
              <th scope="row">{node.name}</th>
              {node.error === undefined ? shown.map(([field]) => <td>{facts[idx]?.get(field) ?? "–"}</td>) : <td colSpan={shown.length}>{node.error}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Findings({ list }: { list: Finding[] }) {
  const sorted = [...list].sort((one, other) => ORDER.indexOf(one.severity) - ORDER.indexOf(other.severity));
  return (
    <ul class="rows">
      {sorted.map((it) => (
        <li class="row top">
          <Badge tone={TONES[it.severity]}>{it.severity}</Badge>
          <div class="row-main">
            <p>
              <strong>{it.about}</strong> {it.node !== null && <span class="muted small">{it.node}</span>}
            </p>
            <p class="small pre">{it.found}</p>
            {it.explain !== "" && <p class="muted small">{it.explain}</p>}
            {it.type_this.map((line) => (
              <div class="type-this">
                <code>{line}</code>
                <CopyButton text={line} />
              </div>
            ))}
          </div>
        </li>
      ))}
    </ul>
  );
}
