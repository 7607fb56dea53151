// One race as a picture: a lane for each copy, and the notices between them. Times are milliseconds since the call began.

import { element, ms, NOTHING, setText } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 104, RIGHT = 18, TOP = 26, LANE = 58, BAR = 20;

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function step(span, pieces) {
  const rough = span / Math.max(2, pieces);
  const unit = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= rough);
}

export function brief(race) {
  const lost = race.bars.filter((bar) => !bar.winner).map((bar) => bar.end).filter(Boolean);
  return `${race.method} ${ms(race.latency_ms)} · ${race.winner || race.outcome} · ${lost[0] || "no news of the other"}`;
}

export function drawRace(place, race) {
  const width = Math.max(300, place.clientWidth);
  const span = Math.max(0.01, ...race.bars.flatMap((bar) => [bar.sent_ms, bar.started_ms, bar.ended_ms]), race.latency_ms || 0, ...race.notices.map((n) => n.heard_ms ?? n.sent_ms)) * 1.03;
  const height = TOP + race.bars.length * LANE + 8;
  const x = (at) => LEFT + (Math.max(0, at) / span) * (width - LEFT - RIGHT);
  const middle = (index) => TOP + index * LANE + LANE / 2 - 4;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Timeline of ${brief(race)}; the same in words below` });
  const size = step(span, (width - LEFT) / 90);
  for (let tick = 0; tick <= span; tick += size) {
    svg.append(shape("line", { class: "tick", x1: x(tick), x2: x(tick), y1: TOP - 6, y2: height }));
    svg.append(shape("text", { class: "quiet", x: x(tick), y: 12, "text-anchor": "middle" }, tick === 0 ? "0 ms" : `${+tick.toPrecision(4)}`));
  }
  race.bars.forEach((bar, index) => {
    const y = middle(index);
    const last = bar.ended_ms ?? Math.max(race.latency_ms || 0, bar.started_ms || 0, bar.arrived_ms || 0);
    svg.append(shape("text", { x: 4, y: y - 2, class: bar.winner ? "won" : "" }, `${bar.replica}${bar.winner ? " ✓" : ""}`));
    svg.append(shape("text", { x: 4, y: y + 13, class: "quiet" }, bar.kind));
    const arrived = bar.arrived_ms ?? bar.started_ms ?? last;
    if (bar.sent_ms !== null) svg.append(shape("line", { class: "way", x1: x(bar.sent_ms), x2: x(arrived), y1: y, y2: y }));
    const waited = bar.started_ms ?? last;
    if (bar.arrived_ms !== null) svg.append(shape("rect", { class: "queued", x: x(bar.arrived_ms), width: Math.max(1, x(waited) - x(bar.arrived_ms)), y: y - BAR / 2 + 4, height: BAR - 8, rx: 2 }));
    if (bar.started_ms !== null) svg.append(shape("rect", { class: bar.winner ? "runs" : "lost", x: x(bar.started_ms), width: Math.max(2, x(last) - x(bar.started_ms)), y: y - BAR / 2, height: BAR, rx: 3 }));
    if (!bar.winner && bar.end) {
      const end = x(last);
      svg.append(shape("path", { class: "cross", d: `M${end - 5} ${y - 5}l10 10m0 -10l-10 10` }));
      const beside = end + 14 + 7 * bar.end.length < width;
      svg.append(shape("text", beside ? { x: end + 12, y: y + 4 } : { x: end + 4, y: y + BAR / 2 + 13, "text-anchor": "end" }, bar.end));
    }
  });
  const named = new Set();
  for (const notice of race.notices) {
    const from = race.bars.findIndex((bar) => bar.replica === notice.from);
    const to = race.bars.findIndex((bar) => bar.replica === notice.to);
    if (from < 0 || to < 0) continue;
    const down = to > from ? 1 : -1;
    const x1 = x(notice.sent_ms ?? notice.heard_ms), y1 = middle(from) + (down * BAR) / 2;
    if (notice.heard_ms === null) { // it went nowhere
      const y2 = y1 + down * 14;
      svg.append(shape("line", { class: "notice", x1, y1, x2: x1, y2 }), shape("path", { class: "cross", d: `M${x1 - 4} ${y2 - 4}l8 8m0 -8l-8 8` }));
      continue;
    }
    const x2 = x(notice.heard_ms), y2 = middle(to) - (down * BAR) / 2;
    svg.append(shape("line", { class: "notice", x1, y1, x2, y2: y2 - down * 6 }));
    svg.append(shape("path", { class: "tip", d: `M${x2} ${y2}l-4 ${-7 * down}h8z` }));
    const room = x1 < LEFT + 60; // on the side of the line where nothing else is
    if (named.size) continue; // where several cross, one name is enough; the words below tell all
    named.add(notice.copy);
    svg.append(shape("text", { class: "tip", x: room ? x2 + 8 : x1 - 6, y: (y1 + y2) / 2 + 4, "text-anchor": room ? "start" : "end" }, notice.kind === "started" ? "notice" : notice.kind));
  }
  place.replaceChildren(svg, key());
}

function key() {
  const entry = (kind, text) => element("span", {}, element("i", { class: `k-${kind}` }), text);
  return element("p", { class: "key" }, entry("way", "on its way"), entry("queued", "in the queue"), entry("runs", "runs and wins"), entry("lost", "runs in vain"), entry("notice", "notice between replicas"));
}

const SAID = { started: "its copy has started", next: "its copy is next", claim: "may the copy start?", granted: "the copy may start", denied: "the copy may not start" };

function story(race) {
  const told = [];
  for (const bar of race.bars) {
    const copy = `${bar.kind} copy`;
    told.push([bar.sent_ms, `${copy} sent to ${bar.replica}`], [bar.arrived_ms, `${copy} arrives at ${bar.replica}`], [bar.started_ms, `${copy} starts at ${bar.replica}`],
      [bar.ended_ms, `${copy} at ${bar.replica}: ${bar.end || "ended"}${bar.winner ? ", the answer" : ""}`]);
  }
  for (const notice of race.notices) {
    const said = SAID[notice.kind] || notice.kind;
    told.push([notice.sent_ms, `${notice.from} tells ${notice.to}: ${said}${notice.heard_ms === null ? " (never heard)" : ""}`], [notice.heard_ms, `${notice.to} hears from ${notice.from}: ${said}`]);
  }
  return told.filter(([when]) => when !== null).sort((one, two) => one[0] - two[0]).map(([when, what]) => `${when.toFixed(2)} ms: ${what}`);
}

export class Races {
  constructor() {
    this.list = document.getElementById("race-list");
    this.follow = document.getElementById("follow");
    this.caption = document.getElementById("race-caption");
    this.picture = document.getElementById("race-picture");
    this.story = document.getElementById("race-story");
    this.races = [];
    this.chosen = null;
    this.shown = null;
    this.list.addEventListener("keydown", (event) => this.move(event));
    this.follow.addEventListener("change", () => this.update(this.races));
    new ResizeObserver(() => this.shown && drawRace(this.picture, this.shown)).observe(this.picture);
  }

  update(races) {
    // A race that somebody looks at stays, however old it gets.
    const kept = !this.follow.checked && this.shown && !races.some((race) => race.call_id === this.shown.call_id) ? [this.shown] : [];
    this.races = [...kept, ...races];
    if (this.follow.checked || !this.shown) this.chosen = this.best(races);
    this.fill();
    const race = this.races.find((one) => one.call_id === this.chosen) || null;
    if (race !== this.shown && (!race || !this.shown || race.call_id !== this.shown.call_id)) this.show(race);
    if (!race) this.show(null);
  }

  /** Of the newest ones rather one in which a notice dropped a copy. */
  best(races) {
    const newest = races.slice(-8).reverse();
    const dropped = (race) => race.notices.length && race.bars.some((bar) => bar.end.startsWith("dropped"));
    const telling = newest.find(dropped) || newest[0];
    return telling ? telling.call_id : null;
  }

  fill() {
    const wanted = [...this.races].reverse();
    const buttons = new Map([...this.list.children].map((button) => [button.dataset.call, button]));
    wanted.forEach((race, index) => {
      const button = buttons.get(race.call_id) || element("button", { type: "button", "data-call": race.call_id, onclick: () => this.choose(race.call_id) }, brief(race));
      buttons.delete(race.call_id);
      button.setAttribute("aria-current", race.call_id === this.chosen ? "true" : "false");
      if (this.list.children[index] !== button) this.list.insertBefore(button, this.list.children[index] || null);
    });
    for (const button of buttons.values()) button.remove();
  }

  choose(id) {
    this.follow.checked = false;
    this.chosen = id;
    this.fill();
    this.show(this.races.find((race) => race.call_id === id) || null);
  }

  move(event) {
    const down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...this.list.children];
    const next = buttons[buttons.indexOf(document.activeElement) + down];
    if (!down || !next) return;
    event.preventDefault();
    next.focus();
    this.choose(next.dataset.call);
  }

  show(race) {
    this.shown = race;
    if (!race) {
      setText(this.caption, "No races yet: drive some load with a policy that sends two copies.");
      this.picture.replaceChildren();
      this.story.replaceChildren();
      return;
    }
    setText(this.caption, `${race.method} under ${race.policy}: ${race.outcome} by ${race.winner || NOTHING} after ${ms(race.latency_ms)} · call ${race.call_id}`);
    drawRace(this.picture, race);
    this.story.replaceChildren(...story(race).map((line) => element("li", {}, line)));
  }
}
