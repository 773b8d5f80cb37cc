// Numbers, times and sizes as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined) return "–";
  let value = count;
  let unit = 0;
  while (1024 <= value && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${digits(value)} ${UNITS[unit]}`;
}

/** Three significant digits, but whole numbers above 100. */
export function digits(value: number): string {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 0.01) return value.toExponential(1);
  const places = 100 <= size || Number.isInteger(value) ? 0 : 10 <= size ? 1 : 2;
  return value.toLocaleString("en-US", { maximumFractionDigits: places, minimumFractionDigits: 0 });
}

export function count(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (1e9 <= value) return `${digits(value / 1e9)} B`;
  if (1e6 <= value) return `${digits(value / 1e6)} M`;
  if (1e4 <= value) return `${digits(value / 1e3)} k`;
  return value.toLocaleString("en-US");
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${digits(value * 1e6)} µs`;
  if (value < 1) return `${digits(value * 1e3)} ms`;
  if (value < 60) return `${digits(Math.round(value * 10) / 10)} s`;
  return duration(value);
}

/** Days, hours, minutes and seconds: the two largest. */
export function duration(value: number): string {
  const whole = Math.floor(value);
  const parts: [number, string][] = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([number]) => 0 < number);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([number], idx) => idx === 0 || 0 < number)
    .map(([number, unit]) => `${number} ${unit}`)
    .join(" ");
}

export function clock(unix: number): string {
  return new Date(unix * 1000).toLocaleTimeString("en-GB");
}

export function day(unix: number): string {
  return new Date(unix * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

export function percent(share: number): string {
  return `${digits(Math.round(share * 1000) / 10)} %`;
}

export function plural(number: number, word: string): string {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** The name of a model without its organisation. */
export function shortName(id: string): string {
  return id.slice(id.lastIndexOf("/") + 1);
}

/** Splits a message of the server into what happened and its hints. */
export function withHint(message: string): { text: string; hints: string[] } {
  const lines = message.split("\n");
  const hints = lines.filter((it) => it.startsWith("hint:")).map((it) => it.slice(5).trim());
  return { text: lines.filter((it) => !it.startsWith("hint:")).join("\n"), hints };
}
