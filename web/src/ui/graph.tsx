// The cluster as a graph: the coordinator, the machines with their ranks, and the links.

import { digits, plural, shortName } from "../format";
import type { Cluster, Link, Machine, Rank } from "../state";
import { useWidth } from "./parts";

const COORDINATOR = { width: 168, height: 46 };
const MACHINE = { width: 212, head: 34, rank: 44, transport: 15, pad: 10 };

/** Maximum number of characters of a rank's transport in the graph. */
const TRANSPORT_CHARS = 27;
const GAP = { x: 44, y: 74, arc: 46 };

interface Box {
  machine: Machine;
  x: number;
  y: number;
  height: number;
}

function rankHeight(rank: Rank) {
  return MACHINE.rank + (rank.transport === null ? 0 : MACHINE.transport);
}

/** The distance of a machine's upper edge from the rank at this position in it, or from its end. */
function rankTop(machine: Machine, idx: number) {
  return machine.ranks.slice(0, idx).reduce((sum, it) => sum + rankHeight(it), MACHINE.head);
}

function heightOf(machine: Machine) {
  return rankTop(machine, machine.ranks.length) + MACHINE.pad;
}

/** Places machines in rows below the coordinator. */
function layout(machines: Machine[], width: number) {
  const perRow = Math.max(1, Math.min(machines.length, Math.floor((width + GAP.x) / (MACHINE.width + GAP.x))));
  const boxes: Box[] = [];
  let y = COORDINATOR.height + GAP.y;
  for (let first = 0; first < machines.length; first += perRow) {
    const row = machines.slice(first, first + perRow);
    const rowWidth = row.length * MACHINE.width + (row.length - 1) * GAP.x;
    row.forEach((machine, idx) => {
      boxes.push({ machine, x: (width - rowWidth) / 2 + idx * (MACHINE.width + GAP.x), y, height: heightOf(machine) });
    });
    y += Math.max(...row.map(heightOf)) + GAP.arc + 16;
  }
  return { boxes, height: y - 16 };
}

/** What a rank holds, in words. */
export function holds(rank: Rank): string {
  if (rank.layers === null || rank.num_layers === null) return rank.phase;
  const [start, end] = rank.layers;
  const layers = start === 0 && end === rank.num_layers ? `all ${end} layers` : `layers ${start}–${end - 1}`;
  return rank.heads === null ? layers : `${layers}, heads ${rank.heads[0]}–${rank.heads[1] - 1}`;
}

/** The transport of a rank's collectives, with its RDMA devices; none if there is no other rank. */
export function transport(rank: Rank): string | null {
  if (rank.transport === null) return null;
  return [rank.transport, ...(rank.rdma ?? [])].join(" ");
}

export function phaseTone(rank: Rank): string {
  if (rank.phase === "computing") return "computing";
  if (rank.phase === "idle") return "good";
  return "warn";
}

function roundTrip(machine: Machine): number | null {
  const times = machine.ranks.map((it) => it.round_trip_us).filter((it) => it !== null);
  return times.length === 0 ? null : Math.min(...times);
}

export function rate(link: Link): string {
  return link.gbps === null || link.gbps === undefined ? "no traffic yet" : `${digits(link.gbps)} Gbit/s`;
}

/** The links between machines, one for each pair; and those within a machine. */
function pairs(links: Link[]) {
  const between = new Map<string, Link>();
  const within = new Map<string, Link>();
  for (const link of links) {
    if (link.machines === undefined) continue;
    const [one, other] = link.machines;
    const into = one === other ? within : between;
    const name = one === other ? one : [one, other].sort().join("\n");
    const known = into.get(name);
    if (known === undefined || (link.gbps ?? 0) < (known.gbps ?? Infinity)) into.set(name, link);
  }
  return { between, within };
}

/** The part of the model that a rank holds: of its layers, or of the heads in each of them. */
function part(rank: Rank, heads: number) {
  const { layers, num_layers } = rank;
  if (layers === null || num_layers === null) return { start: 0, end: 0, all: 1, words: rank.phase };
  const hasAll = layers[0] === 0 && layers[1] === num_layers;
  if (hasAll && rank.heads !== null && rank.heads[1] - rank.heads[0] < heads) {
    const [start, end] = rank.heads;
    return { start, end, all: heads, words: `heads ${start}–${end - 1} of ${heads}` };
  }
  return { start: layers[0], end: layers[1], all: num_layers, words: hasAll ? "all layers" : `layers ${layers[0]}–${layers[1] - 1}` };
}

function RankBox({ rank, heads, x, y }: { rank: Rank; heads: number; x: number; y: number }) {
  const { start, end, all, words } = part(rank, heads);
  const inner = MACHINE.width - 2 * MACHINE.pad;
  const bar = inner - 20;
  const over = transport(rank);
  return (
    <g transform={`translate(${x + MACHINE.pad} ${y})`}>
      <rect class="g-rank" width={inner} height={rankHeight(rank) - 6} rx="7" />
      <circle class={`g-dot ${phaseTone(rank)}`} cx="14" cy="14" r="4" />
      <text class="g-rank-name" x="24" y="18">
        rank {rank.rank}
      </text>
      <text class="g-small" x={inner - 10} y="18" text-anchor="end">
        {words}
      </text>
      <rect class="g-track" x="10" y="27" width={bar} height="4" rx="2" />
      <rect class="g-layers" x={10 + (bar * start) / all} y="27" width={Math.max(2, (bar * (end - start)) / all)} height="4" rx="2" />
      {over !== null && (
        <text class="g-small" x="10" y="46">
          {over.length <= TRANSPORT_CHARS ? over : `${over.slice(0, TRANSPORT_CHARS - 1)}…`}
        </text>
      )}
    </g>
  );
}

function MachineBox({ box, inner, heads }: { box: Box; inner: Link | undefined; heads: Map<string, number> }) {
  const { machine, x, y, height } = box;
  const device = machine.ranks.find((it) => it.device !== null)?.device ?? "";
  return (
    <g>
      <rect class="g-machine" x={x} y={y} width={MACHINE.width} height={height} rx="12" />
      <text class="g-name" x={x + 14} y={y + 22}>
        {machine.name.length <= 20 ? machine.name : `${machine.name.slice(0, 19)}…`}
      </text>
      <text class="g-small" x={x + MACHINE.width - 14} y={y + 22} text-anchor="end">
        {device.toUpperCase()}
      </text>
      {machine.ranks.map((rank, idx) => (
        <RankBox rank={rank} heads={heads.get(rank.model) ?? 0} x={x} y={y + rankTop(machine, idx)} />
      ))}
      {inner !== undefined && (
        <text class="g-small" x={x + MACHINE.width / 2} y={y + height + 18} text-anchor="middle">
          between ranks {rate(inner)}
        </text>
      )}
    </g>
  );
}

/** A link from the coordinator to a machine, with the time of a message there and back. */
function Spoke({ box, width }: { box: Box; width: number }) {
  const from = { x: width / 2, y: COORDINATOR.height };
  const to = { x: box.x + MACHINE.width / 2, y: box.y };
  const middle = (from.y + to.y) / 2;
  const time = roundTrip(box.machine);
  const isDown = box.machine.ranks.some((it) => phaseTone(it) === "warn");
  const label = time === null ? (isDown ? "connecting" : "") : `${digits(time / 1000)} ms`;
  // Labels are near the machines, where lines are apart.
  const at = { x: from.x + (to.x - from.x) * 0.86, y: to.y - 16 };
  return (
    <g>
      <path class={`g-line ${isDown ? "down" : ""}`} d={`M${from.x} ${from.y}C${from.x} ${middle} ${to.x} ${middle} ${to.x} ${to.y}`} />
      {label !== "" && (
        <g transform={`translate(${at.x} ${at.y})`}>
          <rect class="g-label-back" x="-34" y="-11" width="68" height="20" rx="10" />
          <text class="g-label" text-anchor="middle" y="3">
            {label}
          </text>
        </g>
      )}
    </g>
  );
}

/** A link between two machines, drawn below them. */
function Arc({ one, other, link }: { one: Box; other: Box; link: Link }) {
  const [left, right] = one.x <= other.x ? [one, other] : [other, one];
  const from = { x: left.x + MACHINE.width / 2, y: left.y + left.height };
  const to = { x: right.x + MACHINE.width / 2, y: right.y + right.height };
  const low = Math.max(from.y, to.y) + GAP.arc * 0.9;
  const label = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 8 + (low * 3) / 4 };
  return (
    <g>
      <path class="g-line data" d={`M${from.x} ${from.y}C${from.x} ${low} ${to.x} ${low} ${to.x} ${to.y}`} />
      <g transform={`translate(${label.x} ${label.y})`}>
        <rect class="g-label-back" x="-52" y="-11" width="104" height="20" rx="10" />
        <text class="g-label" text-anchor="middle" y="3">
          {rate(link)}
        </text>
      </g>
    </g>
  );
}

function overWords(rank: Rank): string {
  const over = transport(rank);
  return over === null ? "" : `, connected over ${over}`;
}

/** The graph in words, for screen readers. */
function inWords(cluster: Cluster): string {
  const machines = cluster.machines.map((machine) => {
    const ranks = machine.ranks.map((it) => `rank ${it.rank} of ${shortName(it.model)} is ${it.phase} and holds ${holds(it)}${overWords(it)}`);
    return `${machine.name}: ${ranks.join("; ")}`;
  });
  return `Cluster of ${plural(cluster.machines.length, "machine")}. ${machines.join(". ")}`;
}

export function Graph({ cluster }: { cluster: Cluster }) {
  const { ref, width: available } = useWidth();
  const width = Math.max(available, MACHINE.width);
  const { boxes, height } = layout(cluster.machines, width);
  const { between, within } = pairs(cluster.links);
  const heads = new Map<string, number>();
  for (const rank of cluster.machines.flatMap((it) => it.ranks)) heads.set(rank.model, Math.max(heads.get(rank.model) ?? 0, rank.heads?.[1] ?? 0));
  const find = (name: string) => boxes.find((it) => it.machine.name === name);
  const arcs = [...between.values()].flatMap((link) => {
    const [one, other] = (link.machines ?? []).map(find);
    return one !== undefined && other !== undefined && one.y === other.y ? [<Arc one={one} other={other} link={link} />] : [];
  });
  return (
    <div ref={ref} class="graph">
      {0 < available && (
        <svg viewBox={`0 0 ${width} ${height}`} height={height} role="img" aria-label={inWords(cluster)}>
          {boxes.map((box) => (
            <Spoke box={box} width={width} />
          ))}
          {arcs}
          <rect class="g-coordinator" x={(width - COORDINATOR.width) / 2} y="1" width={COORDINATOR.width} height={COORDINATOR.height - 1} rx="12" />
          <text class="g-name on-accent" x={width / 2} y="20" text-anchor="middle">
            coordinator
          </text>
          <text class="g-small on-accent" x={width / 2} y="36" text-anchor="middle">
            {plural(cluster.running, "request")} running
          </text>
          {boxes.map((box) => (
            <MachineBox box={box} inner={within.get(box.machine.name)} heads={heads} />
          ))}
        </svg>
      )}
    </div>
  );
}
