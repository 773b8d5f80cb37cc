// A chart of rates over time (uPlot), with marks where ranks were lost.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { digits } from "../format";
import { isDark } from "../state";
import { useWidth } from "./parts";

interface ChartProps {
  times: number[];
  values: number[];
  marks: number[];
  height: number;
  /** What the chart shows, for screen readers. */
  label: string;
}

function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Draws a vertical line at each mark. */
function drawMarks(plot: uPlot, marks: number[]) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = css("--warn");
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of marks) {
    const x = plot.valToPos(mark, "x", true);
    if (x < bbox.left || bbox.left + bbox.width < x) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function options(width: number, height: number, marks: { current: number[] }): uPlot.Options {
  const axis = {
    stroke: css("--muted"),
    grid: { stroke: css("--line"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  const time = (_: uPlot, all: number[]) =>
    all.map((it) => new Date(it * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" }));
  return {
    width,
    height,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 24, 0, 0],
    scales: { y: { range: (_, __, max) => [0, Math.max(1, (max ?? 0) * 1.15)] } },
    axes: [
      { ...axis, values: time, space: 84, size: 26 },
      { ...axis, values: (_, all) => all.map(digits), size: 44, space: 32 },
    ],
    series: [
      {},
      { stroke: css("--accent"), fill: css("--accent-soft"), width: 2, points: { show: false }, spanGaps: false },
    ],
    hooks: { draw: [(plot) => drawMarks(plot, marks.current)] },
  };
}

export function Chart({ times, values, marks, height, label }: ChartProps) {
  const { ref, width } = useWidth();
  const target = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shown = useRef(marks);
  shown.current = marks;
  const dark = isDark.value;
  useEffect(() => {
    if (width === 0 || target.current === null) return;
    plot.current = new uPlot(options(width, height, shown), [times, values], target.current);
    return () => {
      plot.current?.destroy();
      plot.current = null;
    };
  }, [width, height, dark]);
  useEffect(() => {
    plot.current?.setData([times, values]);
  }, [times, values]);
  return (
    <div ref={ref} class="chart" role="img" aria-label={label}>
      <div ref={target} aria-hidden="true" />
    </div>
  );
}
