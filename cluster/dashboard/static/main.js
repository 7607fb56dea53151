// Asks for the picture once a second, and shows it. While the page is hidden it does not ask.

import { addPoints, drawCharts, forget, makeCharts } from "./charts.js";
import { Controls } from "./controls.js";
import { at, element, ms, NOTHING, number, percent, setText } from "./format.js";
import { Races } from "./race.js";
import { Cards } from "./replicas.js";

const EVERY = 1000, PATIENCE = 8000, KEPT_MAX = 3, LATE_MS = 100;
const controls = new Controls();
const cards = new Cards(controls);
const races = new Races();
const charts = makeCharts();
const link = document.getElementById("link");
let since = 0;
let launch = null; // of which launcher the points are
const kept = new Map(); // the last latency curve of each policy that was driven: [label, curve]
let driven = "";

function keepCurves(now) {
  const traffic = now.traffic;
  if (!traffic || !traffic.running) return [...kept.values()];
  const busiest = now.methods.filter((method) => method.curve).sort((one, two) => two.calls - one.calls)[0];
  if (traffic.policy !== driven) driven = traffic.policy;
  if (busiest) {
    kept.delete(driven);
    kept.set(driven, [`${busiest.name}, ${driven}`, busiest.curve]);
    while (kept.size > KEPT_MAX + 1) kept.delete(kept.keys().next().value);
  }
  return [...kept.entries()].filter(([policy]) => policy !== driven).map(([, entry]) => entry);
}

function tiles(now) {
  const traffic = now.traffic;
  const busiest = now.methods.filter((method) => method.calls).sort((one, two) => two.calls - one.calls)[0];
  const curve = busiest ? busiest.curve : null;
  const brake = busiest ? busiest.brake : null;
  const running = now.replicas.reduce((sum, replica) => sum + (replica.running || 0), 0);
  const queue = now.replicas.reduce((sum, replica) => sum + (replica.queue || 0), 0);
  const wasted = now.methods.map((method) => method.wasted_share).filter((share) => share !== null);
  const policy = !traffic ? NOTHING : traffic.over ? "over" : traffic.running ? traffic.policy : "no load";
  const late = traffic && traffic.running && traffic.behind_ms > LATE_MS;
  return [
    ["policy", policy, late ? `calls leave ${ms(traffic.behind_ms)} late: this machine is too busy` : traffic && traffic.running ? `${number(traffic.rate, 1)} calls/s asked for` : ""],
    ["latency p50", ms(at(curve, 50)), busiest ? busiest.name : ""],
    ["latency p99", ms(at(curve, 99)), ""],
    ["latency p99.9", ms(at(curve, 99.9)), ""],
    ["running", `${number(running)} of ${number(now.capacity)}`, `${number(queue)} in queues`],
    ["duplicates", percent(busiest ? busiest.duplicate_execution_rate : null), "calls that ran twice"],
    ["wasted work", percent(busiest ? busiest.wasted_share : wasted.length ? Math.max(...wasted) : null), ""],
    ["brake", brake ? brake.state : NOTHING, brake ? brake.reason : "no backups by this policy"],
    ["errors", traffic && traffic.errors !== null ? number(traffic.errors) : NOTHING, traffic && traffic.calls !== null ? `of ${number(traffic.calls)} calls` : ""],
  ];
}

const tilePlace = document.getElementById("tiles");
function showTiles(now) {
  const wanted = tiles(now);
  while (tilePlace.children.length < wanted.length) tilePlace.append(element("div", {}, element("dt"), element("dd", {}, "", element("small"))));
  wanted.forEach(([label, value, small], index) => {
    const tile = tilePlace.children[index];
    setText(tile.firstChild, label);
    const dd = tile.lastChild;
    if (dd.firstChild.nodeType !== Node.TEXT_NODE) dd.prepend("");
    if (dd.firstChild.data !== value) dd.firstChild.data = value;
    setText(dd.lastChild, small);
  });
}

const body = document.querySelector("#methods tbody");
function showMethods(methods) {
  if (!methods.length) {
    body.replaceChildren(element("tr", {}, element("td", { colspan: 11, class: "quiet" }, "no method was called yet")));
    return;
  }
  body.replaceChildren(...methods.map((method) => {
    const brake = method.brake;
    const cells = [number(method.executions_per_second, 1), ms(method.service_p50_ms), ms(method.service_p99_ms), ms(method.wait_p99_ms), ms(at(method.curve, 50)), ms(at(method.curve, 99)),
      percent(method.duplicate_execution_rate), percent(method.wasted_share), brake ? ms(brake.delay_ms) : NOTHING, brake ? `${brake.state}: ${brake.reason}` : NOTHING];
    return element("tr", {}, element("th", { scope: "row" }, method.name), ...cells.map((text) => element("td", {}, text)));
  }));
}

function show(answer, mayControl, hint) {
  const now = answer.now;
  since = now.sequence;
  addPoints(answer.points);
  setText(document.getElementById("title"), `${now.title} · ${now.replicas.length} replicas`);
  document.title = `tiedreq ${now.title}`;
  cards.update(now.replicas, now.faults);
  controls.update(now, mayControl, hint);
  races.update(now.races);
  showTiles(now);
  showMethods(now.methods);
  drawCharts(charts, now, keepCurves(now));
}

function tell(text, tone) {
  setText(link, text);
  link.className = `pill ${tone}`;
}

/** Another launcher has come at this address: what is known is not of it. */
function startOver(now) {
  launch = now.launch;
  since = 0;
  driven = "";
  kept.clear();
  forget();
}

async function look() {
  const response = await fetch(`/api/live?since=${since}`, { signal: AbortSignal.timeout(PATIENCE), cache: "no-store" });
  if (!response.ok) throw new Error(String(response.status));
  const may = response.headers.get("x-may-control") || "no";
  const answer = await response.json();
  if (answer.now.launch !== launch) {
    const asked = since;
    startOver(answer.now);
    if (asked) return look();
  }
  show(answer, may !== "no", may === "yes" ? "" : decodeURIComponent(may));
}

/** After something was changed the next look does not wait. */
let hurry = () => {};
controls.changed = () => hurry();

async function run() {
  for (;;) {
    if (!document.hidden) {
      try {
        await look();
        tell("live", "good");
      } catch {
        tell("the launcher does not answer", "bad");
      }
    }
    await new Promise((done) => {
      hurry = done;
      setTimeout(done, EVERY);
    });
  }
}

run();
