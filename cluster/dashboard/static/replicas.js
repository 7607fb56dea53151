// A card for each replica while it is there, made once and then kept up to date, so that the focus stays where it is.

import { element, ms, NOTHING, number, percent, setText } from "./format.js";

const FIELDS = [["queue", "queue"], ["running", "running"], ["service", "service"], ["p99", "p99"], ["lag", "loop lag"], ["started", "starts/s"], ["wasted", "wasted"], ["double", "doubled"]];
const TONE = { up: "good", starting: "warn", draining: "warn", paused: "warn", drained: "warn", silent: "bad", failed: "bad" };
const FACTORS = [1, 2, 3, 5, 10];

export class Cards {
  constructor(controls) {
    this.controls = controls;
    this.place = document.getElementById("cards");
    this.cards = new Map();
  }

  make(replica) {
    const name = replica.name;
    const act = (label, verb, more = {}) => element("button", { type: "button", "data-verb": verb, "aria-label": `${label} ${name}`, onclick: () => this.controls.ask({ do: verb, replica: name, ...more }) }, label);
    const parts = Object.fromEntries(FIELDS.map(([key]) => [key, element("dd", {}, NOTHING)]));
    const factor = element("select", { "aria-label": `${name}: how many times as slow`, onchange: (event) => this.controls.ask({ do: "slow", replica: name, factor: Number(event.target.value) }) },
      ...FACTORS.map((value) => element("option", { value }, value === 1 ? "not slow" : `${value} × slow`)));
    const pill = element("span", { class: "pill" });
    const fill = element("i");
    const links = element("ul", { class: "links", "aria-label": `Links of ${name}, with the latency of a notice` });
    const pause = act("Pause", "pause"), resume = act("Resume", "resume");
    const actions = element("div", { class: "actions" }, pause, resume, act("Restart", "restart"), act("Drain", "drain"), act("Kill", "kill"), factor);
    const card = element("article", { class: "card", "aria-label": `Replica ${name}` },
      element("header", {}, element("h3", {}, name), pill, element("span", { class: "quiet pid" })),
      element("dl", {}, ...FIELDS.flatMap(([key, label]) => [element("dt", {}, label), parts[key]])),
      element("div", { class: "bar" }, fill), links, actions);
    const made = { card, parts, pill, fill, links, factor, pause, resume, actions, pid: card.querySelector(".pid") };
    this.cards.set(name, made);
    return made;
  }

  update(replicas, faults) {
    const names = new Set(replicas.map((replica) => replica.name));
    for (const [name, { card }] of this.cards) {
      if (names.has(name)) continue;
      card.remove();
      this.cards.delete(name);
    }
    replicas.forEach((replica, index) => {
      const made = this.cards.get(replica.name) || this.make(replica);
      made.card.style.setProperty("--series", `var(--c${index % 8})`);
      if (this.place.children[index] !== made.card) this.place.insertBefore(made.card, this.place.children[index] || null);
      this.fill(made, replica, faults);
    });
  }

  fill(card, replica, faults) {
    setText(card.pill, replica.state);
    card.pill.className = `pill ${TONE[replica.state] || ""}`;
    setText(card.pid, `process ${replica.pid}`);
    const texts = {
      queue: number(replica.queue), running: replica.running === null ? NOTHING : `${replica.running} of ${replica.slots}`,
      service: ms(replica.service_ms), p99: ms(replica.service_p99_ms), lag: ms(replica.lag_ms), started: number(replica.started_per_second, 1),
      wasted: percent(replica.wasted_share), double: number(replica.double_starts),
    };
    for (const [key, text] of Object.entries(texts)) setText(card.parts[key], text);
    card.fill.style.width = replica.running === null ? "0" : `${(100 * replica.running) / replica.slots}%`;
    const wanted = replica.links.map((link) => [`${link.peer} ${link.up ? ms(link.notice_ms) : "down"}`, link.up, replica.cut.includes(link.peer) ? "cut off" : link.reason]);
    const key = JSON.stringify(wanted);
    if (card.links.dataset.key !== key) {
      card.links.dataset.key = key;
      card.links.replaceChildren(...wanted.map(([text, up, title]) => element("li", { class: up ? "" : "down", title: title || null }, text)));
    }
    const factor = faults.slow[replica.name] || 1;
    if (document.activeElement !== card.factor) {
      if (![...card.factor.options].some((option) => Number(option.value) === factor)) card.factor.append(element("option", { value: factor }, `${factor} × slow`));
      card.factor.value = String(factor);
    }
    const up = replica.state === "up" || replica.state === "silent";
    const allowed = { pause: up, resume: replica.state === "paused", restart: up || ["drained", "failed"].includes(replica.state), drain: up, kill: up || ["starting", "draining", "paused"].includes(replica.state) };
    for (const button of card.actions.querySelectorAll("button")) button.dataset.off = allowed[button.dataset.verb] ? "no" : "yes";
    card.pause.hidden = replica.state === "paused";
    card.resume.hidden = replica.state !== "paused";
  }
}
