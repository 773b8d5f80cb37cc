// What all views share: the overview that is polled, the place in the page, the theme and notices.

import { computed, signal } from "@preact/signals";
import { Refusal, apiKey, call, keyWanted, message } from "./api";

export interface Rank {
  model: string;
  rank: number;
  pid: number | null;
  phase: string;
  silent_s: number | null;
  round_trip_us: number | null;
  loaded_bytes: { done: number; total: number } | null;
  device: string | null;
  /** Transport of the collectives: tcp, ring, jaccl or nccl; null if there is no other rank. */
  transport: string | null;
  /** RDMA devices towards the other ranks; empty unless the transport uses RDMA. */
  rdma: string[] | null;
  architecture: string | null;
  num_layers: number | null;
  layers: [number, number] | null;
  heads: [number, number] | null;
  weights_bytes: number | null;
  load_ms: number | null;
  kv_bytes: number;
  active_bytes: number;
  resident_bytes: number;
  steps: number;
  computing_us: number;
  communicating_us: number;
  waiting_us: number;
  sent_bytes: number;
  received_bytes: number;
}

export interface Machine {
  name: string;
  weights_bytes: number;
  kv_bytes: number;
  active_bytes: number;
  reusable_bytes: number;
  total_bytes: number | null;
  /** Temperature or thermal state; null where the system does not report it, as the power and the load. */
  thermal: string | null;
  cpu_watts: number | null;
  gpu_watts: number | null;
  /** Load of the busiest GPU. */
  gpu_percent: number | null;
  ranks: Rank[];
}

export interface Link {
  model: string;
  ranks?: [number, number];
  machines?: [string, string];
  encrypted?: boolean | null;
  gbps?: number | null;
  between?: string;
  broken: { reason: string; seconds: number } | null;
}

export interface Model {
  id: string;
  aliases: string[];
  state: string;
  is_default: boolean;
  is_pinned: boolean;
  failure: string | null;
  down: { seconds: number; cause: string; rank: number | null } | null;
  loaded_bytes: { done: number; total: number } | null;
  open_requests: number;
  waiting_for_load: number;
  expires_in_s: number | null;
  load_s: number | null;
  context_tokens: number | null;
  num_ranks: number;
  details: { family: string; num_parameters: number; weight_bits: number | null; weights_bytes: number } | null;
  running: number;
  waiting: number;
  kv: { running_bytes: number; kept_bytes: number; budget_bytes: number; bytes_per_token: number };
  prefix: { queried_tokens: number; found_tokens: number };
  pressure: { tier: string; machine: string | null; free_bytes: number | null };
  counters: { requests: number; sampled_tokens: number; prompt_tokens: number; recoveries: number; preemptions: number };
}

export interface Recovery {
  model: string;
  at: number;
  rank: number | null;
  cause: string;
  seconds: number | null;
}

export interface Cluster {
  time: number;
  version: string;
  uptime_s: number;
  default_model: string;
  running: number;
  running_max: number;
  waiting: number;
  waiting_max: number;
  open_streams: number;
  samples: Sample[];
  recoveries: Recovery[];
  machines: Machine[];
  links: Link[];
  models: Model[];
}

/** Time, tokens sampled per second, prompt tokens per second, running and waiting requests. */
export type Sample = [number, number, number, number, number];

/** Number of samples that are kept: ten minutes. */
const SAMPLES_MAX = 600;

/** Time between two overviews, in milliseconds; shorter while ranks are being replaced. */
const POLL_MS = 1000;
const RECOVERING_POLL_MS = 300;

export const cluster = signal<Cluster | null>(null);
export const samples = signal<Sample[]>([]);
/** Why the server's overview is not current, if so. */
export const offline = signal<string | null>(null);

export const down = computed(() => cluster.value?.models.find((it) => it.down !== null) ?? null);

export async function poll() {
  const known = samples.value;
  const last = known.at(-1)?.[0] ?? 0;
  const missed = Math.ceil(Date.now() / 1000 - last) + 2;
  const wanted = known.length === 0 ? SAMPLES_MAX : Math.min(SAMPLES_MAX, Math.max(5, missed));
  const next = await call<Cluster>("GET", `/v1/cluster?n=${wanted}`);
  const fresh = next.samples.filter((it) => last < it[0]);
  if (0 < fresh.length) samples.value = [...known, ...fresh].slice(-SAMPLES_MAX);
  cluster.value = next;
  offline.value = null;
}

/** Polls as long as the page is shown. */
export async function keepPolling() {
  while (true) {
    if (!document.hidden && keyWanted.value === null) {
      try {
        await poll();
      } catch (error) {
        if (!(error instanceof Refusal && error.status === 401)) offline.value = message(error);
      }
    }
    const pause = down.value !== null || offline.value !== null ? RECOVERING_POLL_MS : POLL_MS;
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

export const VIEWS = ["overview", "chat", "models", "requests", "machines", "keys"] as const;
export type View = (typeof VIEWS)[number];

function place(): View {
  const name = location.hash.replace(/^#\/?/, "").split("/")[0];
  return VIEWS.find((it) => it === name) ?? "overview";
}

export const view = signal<View>(place());
addEventListener("hashchange", () => {
  view.value = place();
});

export type Theme = "auto" | "light" | "dark";
const THEME_NAME = "jackalope.theme";
const storedTheme = localStorage.getItem(THEME_NAME);
export const theme = signal<Theme>(storedTheme === "light" || storedTheme === "dark" ? storedTheme : "auto");
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(systemIsDark.matches);
systemIsDark.addEventListener("change", () => {
  systemDark.value = systemIsDark.matches;
});
export const isDark = computed(() => (theme.value === "auto" ? systemDark.value : theme.value === "dark"));

export function setTheme(next: Theme) {
  theme.value = next;
  localStorage.setItem(THEME_NAME, next);
}

export interface Notice {
  id: number;
  kind: "good" | "bad";
  text: string;
}

const NOTICE_MS = 6000;
let nextNotice = 1;
export const notices = signal<Notice[]>([]);

export function notify(kind: Notice["kind"], text: string) {
  const id = nextNotice++;
  notices.value = [...notices.value.slice(-3), { id, kind, text }];
  setTimeout(() => {
    notices.value = notices.value.filter((it) => it.id !== id);
  }, NOTICE_MS);
}

/** Starts the overview anew, with another key. */
export function forget() {
  cluster.value = null;
  samples.value = [];
}
apiKey.subscribe(forget);
