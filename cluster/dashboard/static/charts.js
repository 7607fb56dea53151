// The charts. Each keeps its data, so that it can be drawn anew when the width or the color scheme changes.

/* global uPlot */
import { color, ms, number, seriesColor } from "./format.js";

const HEIGHT = 210;
const POINTS_MAX = 300;
const all = [];

class Chart {
  constructor(id, options) {
    this.place = document.getElementById(id);
    this.options = options;
    this.plot = null;
    this.key = "";
    this.data = null;
    this.empty = document.createElement("p");
    this.empty.className = "empty";
    this.empty.textContent = options.empty || "no data yet";
    this.place.parentElement.append(this.empty);
    new ResizeObserver(() => this.fit()).observe(this.place);
    all.push(this);
  }

  /** `series`: [{label, stroke, dash}], `data`: [xs, ys, …] with null where nothing is known. */
  draw(series, data) {
    this.series = series;
    this.data = data;
    const known = data.slice(1).some((ys) => ys.some((y) => y !== null && y !== undefined));
    this.empty.hidden = known;
    const key = JSON.stringify([series, known]);
    if (this.plot && key === this.key) this.plot.setData(data);
    else this.build(key);
    setTimeout(() => this.rest());
  }

  /** While nobody points at the chart, its legend shows the latest values. */
  rest() {
    const xs = this.data[0];
    if (!(this.plot.cursor.left >= 0) && xs.length) this.plot.setLegend({ idx: this.options.rest ? this.options.rest(xs) : xs.length - 1 });
  }

  build(key) {
    this.key = key;
    if (this.plot) this.plot.destroy();
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const named = (label) => (label ? { label, labelSize: 16, labelGap: 0, labelFont: "11px system-ui" } : {});
    const { log, x = {}, y = {}, value = (v) => number(v, 2) } = this.options;
    const options = {
      width: Math.max(200, this.place.clientWidth),
      height: HEIGHT,
      padding: [8, 10, 0, 0],
      scales: { x: { time: false, ...(x.range ? { range: x.range } : {}) }, y: log ? { distr: 3, range: (_, low, high) => (low > 0 ? uPlot.rangeLog(low, high, 10, false) : [1, 1000]) } : { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      axes: [
        { ...axis, size: 26, ...named(x.title), ...(x.values ? { values: x.values } : {}), ...(x.splits ? { splits: x.splits } : {}) },
        { ...axis, size: 46, ...named(y.title), ...(y.whole ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] } : {}), values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : y.text ? y.text(tick) : number(tick, 2))) },
      ],
      series: [
        { label: x.label || "s", value: (_, v) => (v === null || v === undefined ? "–" : x.text ? x.text(v) : number(v, 0)) },
        ...this.series.map((one) => ({ ...one, width: one.width || 1.6, spanGaps: true, points: { show: one.points || false, size: 5 }, value: (_, v) => (v === null || v === undefined ? "–" : value(v)) })),
      ],
      legend: { live: true },
      cursor: { y: false, points: { size: 6 } },
    };
    this.plot = new uPlot(options, this.data, this.place);
  }

  fit() {
    const width = this.place.clientWidth;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }
}

const history = [];
let latest = 0;
const STEPS = [1, 2, 5, 10, 20, 30, 60, 120];
const ago = {
  splits: (_, __, low) => {
    const step = STEPS.find((size) => (latest - low) / size <= 6) || 300;
    return Array.from({ length: Math.floor((latest - low) / step) + 1 }, (_, index) => latest - index * step).reverse();
  },
  range: (_, low, high) => [Math.min(low ?? 0, (high ?? 0) - 10), high ?? 0],
  values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : `${Math.round(latest - tick)}`)),
  title: "seconds ago", label: "at", text: (v) => (v >= latest ? "now" : `${Math.round(latest - v)} s ago`),
};
const shares = { text: (v) => `${number(v, 1)}`, title: "%" };
const plain = { text: (v) => number(v, v < 1 ? 2 : 0), title: "ms" };
const copies = { text: (v) => number(v), whole: true, title: "copies" };
const tail = (p) => -Math.log10(1 - Math.min(p, 99.95) / 100);
const untail = (v) => 100 * (1 - 10 ** -v);
const MARKS = [0, 50, 90, 99, 99.9];

export function makeCharts() {
  const logged = { log: true, x: ago, y: plain, value: ms };
  const charts = {
    latency: new Chart("chart-latency", { ...logged, empty: "no calls in the last seconds" }),
    waste: new Chart("chart-waste", { x: ago, y: shares, value: (v) => `${number(v, 2)} %` }),
    curve: new Chart("chart-curve", {
      log: true, y: plain, value: ms, empty: "no calls in the last seconds",
      rest: (xs) => xs.indexOf(tail(99)),
      x: { splits: () => MARKS.map(tail), values: () => MARKS.map((p) => `${p}`), title: "percentile of calls", label: "percentile", text: (v) => number(untail(v), 1), range: () => [0, tail(100)] },
    }),
    queue: new Chart("chart-queue", { x: ago, y: copies, value: (v) => number(v) }),
    running: new Chart("chart-running", { x: ago, y: copies, value: (v) => number(v) }),
    service: new Chart("chart-service", { x: ago, y: plain, value: ms }),
    lag: new Chart("chart-lag", { x: ago, y: plain, value: ms }),
    notice: new Chart("chart-notice", { x: ago, y: plain, value: ms }),
  };
  const again = () => {
    for (const chart of all) chart.key = "";
    drawCharts(charts);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  return charts;
}

export function forget() {
  history.length = 0;
}

export function addPoints(points) {
  for (const point of points) history.push(point);
  if (history.length > POINTS_MAX) history.splice(0, history.length - POINTS_MAX);
  if (history.length) latest = history[history.length - 1].t;
}

let curves = { live: [], kept: [] };
let names = [];

export function drawCharts(charts, now, kept) {
  if (now) {
    names = now.replicas.map((replica) => replica.name);
    curves = { live: now.methods.filter((method) => method.curve).map((method) => [method.name, method.curve]), kept };
  }
  const xs = history.map((point) => point.t);
  const of = (name, factor = 1) => history.map((point) => (point.c[name] === null ? null : factor * point.c[name]));
  const positive = (values) => values.map((value) => (value === null || value <= 0 ? null : value));
  const line = (label, index, more = {}) => ({ label, stroke: seriesColor(index), ...more });
  charts.latency.draw([line("p50", 2), line("p99", 0), line("p99.9", 1)], [xs, positive(of("p50")), positive(of("p99")), positive(of("p999"))]);
  charts.waste.draw([line("duplicates", 1), line("wasted work", 3)], [xs, of("duplicates", 100), of("wasted", 100)]);
  ["queue", "running", "service", "lag", "notice"].forEach((name, place) => {
    const series = names.map((replica, index) => line(replica, index, index < 8 ? {} : { dash: [6, 4] }));
    charts[name].draw(series, [xs, ...names.map((replica) => history.map((point) => (point.r[replica] ? point.r[replica][place] : null)))]);
  });
  const lines = [...curves.live.map(([label, curve], index) => [line(label, index, { width: 2.4, points: true }), curve]),
    ...curves.kept.map(([label, curve], index) => [line(label, index + 4, { dash: [6, 4] }), curve])];
  const marks = curves.live.concat(curves.kept)[0];
  const percents = marks ? marks[1].map(([p]) => p) : [0, 100];
  charts.curve.draw(lines.map(([series]) => series), [percents.map(tail), ...lines.map(([, curve]) => curve.map(([, value]) => (value > 0 ? value : null)))]);
}
