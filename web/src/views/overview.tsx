// The cluster at a glance: what runs where, how fast, in how much memory, and what was recovered from.

import { useMemo } from "preact/hooks";
import { bytes, clock, count, day, digits, duration, percent, plural, seconds, shortName } from "../format";
import { type Cluster, type Machine, type Model, type Recovery, cluster, samples } from "../state";
import { Chart } from "../ui/chart";
import { Graph } from "../ui/graph";
import { Badge, Bar, Card, Empty, Progress, type Tone, toneOf } from "../ui/parts";

/** Number of recoveries that are listed. */
const RECOVERIES_SHOWN = 6;

/** Length of the time line, in seconds. */
const TIME_LINE = 3600;

export function Overview() {
  const now = cluster.value;
  if (now === null) return <Empty>Waiting for the server…</Empty>;
  return (
    <div class="stack">
      <Tiles now={now} />
      <div class="columns wide-first">
        <Card title="Cluster" aside={<span class="muted">{plural(now.machines.length, "machine")}</span>}>
          {now.machines.length === 0 ? <Empty>No ranks run. A request loads the model.</Empty> : <Graph cluster={now} />}
        </Card>
        <div class="stack">
          <Throughput now={now} />
          <Memory machines={now.machines} />
        </div>
      </div>
      <div class="columns">
        <Serving models={now.models} />
        <Recoveries now={now} />
      </div>
    </div>
  );
}

function Tile({ name, value, unit, note, children }: { name: string; value: string; unit?: string; note?: string; children?: preact.ComponentChildren }) {
  return (
    <div class="tile">
      <p class="tile-name">{name}</p>
      <p class="tile-value">
        {value}
        {unit !== undefined && <span class="tile-unit"> {unit}</span>}
      </p>
      {children}
      {note !== undefined && <p class="tile-note">{note}</p>}
    </div>
  );
}

/** The colour of a queue of which this share is full. */
function queueTone(share: number): Tone {
  if (share < 0.4) return "good";
  return share < 0.75 ? "warn" : "bad";
}

function Tiles({ now }: { now: Cluster }) {
  const rates = samples.value.map((it) => it[1]);
  const peak = Math.max(0, ...rates);
  const queried = now.models.reduce((sum, it) => sum + it.prefix.queried_tokens, 0);
  const found = now.models.reduce((sum, it) => sum + it.prefix.found_tokens, 0);
  const sampled = now.models.reduce((sum, it) => sum + it.counters.sampled_tokens, 0);
  const share = 0 < now.waiting_max ? now.waiting / now.waiting_max : 0;
  return (
    <div class="tiles">
      <Tile name="Speed" value={digits(rates.at(-1) ?? 0)} unit="tokens/s" note={`peak ${digits(peak)} in ten minutes`} />
      <Tile name="Running" value={count(now.running)} note={`of at most ${count(now.running_max)}`} />
      <Tile name="Waiting" value={count(now.waiting)} note={`of at most ${count(now.waiting_max)}`}>
        <Bar parts={[{ share, tone: queueTone(share) }]} label={`The queue is ${percent(share)} full`} />
      </Tile>
      <Tile name="Prompt cache" value={0 < queried ? percent(found / queried) : "–"} note={`${count(found)} tokens reused`} />
      <Tile name="Generated" value={count(sampled)} unit="tokens" note={`up ${duration(now.uptime_s)}`} />
    </div>
  );
}

function Throughput({ now }: { now: Cluster }) {
  const list = samples.value;
  const { times, values } = useMemo(() => ({ times: list.map((it) => it[0]), values: list.map((it) => it[1]) }), [list]);
  const last = values.at(-1) ?? 0;
  const lost = now.recoveries.length;
  return (
    <Card title="Tokens per second" aside={0 < lost && <span class="legend mark">rank lost</span>}>
      <Chart
        times={times}
        values={values}
        marks={now.recoveries.map((it) => it.at)}
        height={176}
        label={`Tokens per second in the last ten minutes, now ${digits(last)}, at most ${digits(Math.max(0, ...values))}`}
      />
    </Card>
  );
}

function Memory({ machines }: { machines: Machine[] }) {
  return (
    <Card title="Memory">
      {machines.length === 0 && <Empty>No model is loaded.</Empty>}
      {machines.map((machine) => (
        <MachineMemory machine={machine} />
      ))}
      {0 < machines.length && (
        <p class="legends">
          <span class="legend accent">weights</span>
          <span class="legend second">KV cache</span>
          <span class="legend third">other</span>
          <span class="legend track">free</span>
        </p>
      )}
    </Card>
  );
}

/** Temperature, power and GPU load, as far as the machine's system reports them. */
function heat(machine: Machine): string {
  const number = (name: string, value: number | null, unit: string) => (value === null ? null : `${name} ${digits(value)} ${unit}`);
  const numbers = [number("CPU", machine.cpu_watts, "W"), number("GPU", machine.gpu_watts, "W"), number("GPU", machine.gpu_percent, "%")];
  return [machine.thermal, ...numbers].filter((it) => it !== null).join(" · ");
}

export function MachineMemory({ machine, isNamed = true }: { machine: Machine; isNamed?: boolean }) {
  const { weights_bytes: weights, kv_bytes: kv, total_bytes } = machine;
  const other = Math.max(0, machine.active_bytes + machine.reusable_bytes - weights - kv);
  const used = weights + kv + other;
  const total = Math.max(total_bytes ?? used, used, 1);
  const words = `${bytes(weights)} weights, ${bytes(kv)} KV cache, ${bytes(other)} other, ${bytes(total - used)} free`;
  return (
    <div class="memory">
      <p class="memory-head">
        <span class="ellipsis">{isNamed ? machine.name : "Memory"}</span>
        <span class="muted">
          {bytes(used)} of {bytes(total)}
        </span>
      </p>
      <Bar
        parts={[
          { share: weights / total, tone: "accent" },
          { share: kv / total, tone: "second" },
          { share: other / total, tone: "third" },
        ]}
        label={`${machine.name}: ${words}`}
      />
      <p class="tile-note">{words}</p>
      {heat(machine) !== "" && <p class="tile-note">{heat(machine)}</p>}
    </div>
  );
}

function Serving({ models }: { models: Model[] }) {
  return (
    <Card title="Models" aside={<a href="#/models">All models</a>}>
      <ul class="rows">
        {models.slice(0, 8).map((model) => (
          <li class="row">
            <div class="row-main">
              <p class="ellipsis">
                <strong title={model.id}>{shortName(model.id)}</strong>
              </p>
              <p class="muted small">{describe(model)}</p>
              {model.loaded_bytes !== null && (
                <Progress done={model.loaded_bytes.done} total={model.loaded_bytes.total} label={`Loading ${model.id}`} />
              )}
            </div>
            <Badge tone={toneOf(model.state)}>{model.state}</Badge>
          </li>
        ))}
      </ul>
    </Card>
  );
}

export function describe(model: Model): string {
  const { details } = model;
  const parts = [
    details === null ? null : `${count(details.num_parameters)} parameters`,
    details?.weight_bits ? `${details.weight_bits} bits` : null,
    0 < model.num_ranks ? plural(model.num_ranks, "rank") : null,
    model.context_tokens === null ? null : `context ${count(model.context_tokens)}`,
  ];
  return parts.filter((it) => it !== null).join(" · ");
}

function Recoveries({ now }: { now: Cluster }) {
  const list = [...now.recoveries].reverse();
  const times = list.map((it) => it.seconds).filter((it) => it !== null);
  const mean = times.length === 0 ? null : times.reduce((sum, it) => sum + it, 0) / times.length;
  return (
    <Card title="Recoveries" aside={mean !== null && <span class="muted">{seconds(mean)} on average</span>}>
      <TimeLine list={list} now={now.time} />
      {list.length === 0 && <Empty>No rank has been lost since the server started.</Empty>}
      <ul class="rows">
        {list.slice(0, RECOVERIES_SHOWN).map((it) => (
          <li class="row">
            <div class="row-main">
              <p class="ellipsis" title={it.cause}>
                {it.cause.split("\n")[0]}
              </p>
              <p class="muted small">
                {day(it.at)}, {clock(it.at)} · {shortName(it.model)}
              </p>
            </div>
            {it.seconds === null ? <Badge tone="warn">recovering</Badge> : <Badge tone="good">back after {seconds(it.seconds)}</Badge>}
          </li>
        ))}
      </ul>
    </Card>
  );
}

/** The last hour from left to right, with a mark for each recovery. */
function TimeLine({ list, now }: { list: Recovery[]; now: number }) {
  const late = list.filter((it) => now - it.at < TIME_LINE);
  const place = (at: number) => 100 * (1 - (now - at) / TIME_LINE);
  return (
    <div class="time-line" role="img" aria-label={`${plural(late.length, "recovery").replace("recoverys", "recoveries")} in the last hour`}>
      <div class="time-line-track">
        {late.map((it) => (
          <div
            class={`time-line-mark ${it.seconds === null ? "open" : ""}`}
            style={{ left: `${place(it.at)}%`, width: `${Math.max(0.6, (100 * (it.seconds ?? now - it.at)) / TIME_LINE)}%` }}
          />
        ))}
      </div>
      <div class="time-line-scale">
        <span>an hour ago</span>
        <span>30 min</span>
        <span>now</span>
      </div>
    </div>
  );
}
