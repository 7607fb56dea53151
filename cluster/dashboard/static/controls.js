// What a person may do: requests to the control route, with the control token.

import { element, setText } from "./format.js";

const KEY = "tiedreq-control-token";
const SHOW = "lognormal(median=100ms,sigma=0.25)";
const SHOW_SECONDS = 0.1032; // its mean
const SHOW_LOAD = 0.7;
const ALL = "*"; // no name of a replica

/** The token comes in the fragment of the address, which no server sees, and is kept for this tab alone. */
function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    sessionStorage.setItem(KEY, found);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY) || "";
}

export class Controls {
  constructor() {
    this.token = takeToken();
    this.remote = false;
    this.hint = "python -m cluster.ctl dashboard";
    this.ready = false;
    this.now = null;
    this.changed = () => {};
    this.panel = document.getElementById("panel");
    this.said = document.getElementById("said");
    this.stepSaid = document.getElementById("step-said");
    this.forms = Object.fromEntries(["traffic", "work", "latency", "partition"].map((name) => [name, document.getElementById(`form-${name}`)]));
    document.getElementById("unlock").addEventListener("submit", (event) => this.unlock(event));
    this.on("traffic", (form) => ({ do: "traffic", rate: Number(form.rate.value), policy: form.policy.value, work: form.work.value === "true" }));
    this.on("work", (form) => ({ do: "work", service: form.service.value, pause: form.pause.value || "none" }));
    this.on("latency", (form) => ({ do: "latency", spec: form.spec.value }));
    this.on("partition", (form) => ({ do: "partition", from: form.from.value, to: form.to.value === ALL ? null : form.to.value, one_way: form.one_way.checked }));
    document.getElementById("heal").addEventListener("click", () => this.ask({ do: "heal" }));
    for (const button of document.querySelectorAll("#steps button")) button.addEventListener("click", () => this.step(button.dataset.policy));
    addEventListener("hashchange", () => { // the address with a token, opened where the page is already
      this.token = takeToken();
      this.lock();
    });
    for (const form of Object.values(this.forms)) form.addEventListener("input", () => (form.dataset.touched = "yes"));
  }

  on(name, request) {
    this.forms[name].addEventListener("submit", async (event) => {
      event.preventDefault();
      if ((await this.ask(request(this.forms[name].elements))).ok) delete this.forms[name].dataset.touched;
    });
  }

  get unlocked() {
    return this.ready && !this.remote && this.token !== "";
  }

  async unlock(event) {
    event.preventDefault();
    this.token = document.getElementById("token").value.trim();
    if ((await this.ask({ do: "status" }, "The controls are unlocked.")).ok) {
      sessionStorage.setItem(KEY, this.token);
      document.getElementById("token").value = "";
    } else this.token = "";
    this.lock();
  }

  lock() {
    const note = document.getElementById("locked");
    note.hidden = this.unlocked || !this.ready;
    document.getElementById("show-locked").hidden = note.hidden;
    document.getElementById("unlock").hidden = this.remote;
    setText(document.getElementById("locked-why"), this.remote
      ? "Read-only: from another host this dashboard may only be looked at."
      : `Read-only. To use the controls, run “${this.hint}” in the folder where the launcher was started and open the address that it prints, or enter the control token.`);
    this.panel.disabled = !this.unlocked;
    for (const button of document.querySelectorAll("#steps button, .actions button, .actions select")) button.disabled = !this.unlocked || button.dataset.off === "yes";
  }

  async ask(request, said) {
    let answer;
    try {
      const response = await fetch("/api/control", {
        method: "POST", headers: { "Content-Type": "application/json", Authorization: `Bearer ${this.token}` }, body: JSON.stringify(request),
      });
      answer = await response.json();
      if (response.status === 401) {
        this.token = "";
        sessionStorage.removeItem(KEY);
        this.lock();
      }
    } catch {
      answer = { ok: false, error: "the launcher does not answer" };
    }
    this.say(answer.ok ? said || answer.said : answer.error, answer.ok);
    this.changed();
    return answer;
  }

  say(text, ok) {
    setText(this.said, text);
    this.said.className = `said ${ok ? "good" : "bad"}`;
  }

  /** A step of the one-minute show: the same work and load each time, another policy. */
  async step(policy) {
    const tell = (answer) => setText(this.stepSaid, answer.ok ? answer.said : answer.error);
    if (!policy) return tell(await this.ask({ do: "traffic", rate: 0 }));
    const rate = Math.round((SHOW_LOAD * this.now.capacity) / SHOW_SECONDS);
    const work = this.now.work;
    if (!work || work.service !== SHOW || work.pause.length) {
      const changed = await this.ask({ do: "work", service: SHOW, pause: "none" });
      if (!changed.ok) return tell(changed);
    }
    return tell(await this.ask({ do: "traffic", rate, policy, work: true }));
  }

  update(now, mayControl, hint) {
    if (hint) this.hint = hint;
    this.now = now;
    this.ready = true;
    this.remote = !mayControl;
    this.fill(now);
    document.getElementById("show").hidden = !now.traffic;
    this.forms.traffic.hidden = !now.traffic;
    this.forms.work.hidden = !now.work;
    for (const button of document.querySelectorAll("#steps button[data-policy]")) {
      const running = now.traffic && now.traffic.running && now.traffic.policy === button.dataset.policy;
      if (button.dataset.policy) button.setAttribute("aria-pressed", running ? "true" : "false");
    }
    this.reflect(now);
    this.lock();
  }

  /** The lists to choose from. Where what was chosen has gone nothing is, so that nobody cuts off another one unawares. */
  fill(now) {
    const offer = (list, choices) => {
      if (list.options.length === choices.length && choices.every(([value], index) => list.options[index].value === value)) return;
      const chosen = list.options.length ? list.value : choices[0][0];
      list.replaceChildren(...choices.map(([value, text]) => element("option", { value }, text)));
      list.value = chosen;
    };
    const named = (names) => names.map((name) => [name, name]);
    const replicas = named(now.replicas.map((replica) => replica.name));
    offer(this.forms.traffic.elements.policy, named(now.policies));
    offer(this.forms.partition.elements.from, replicas);
    offer(this.forms.partition.elements.to, [[ALL, "all others"], ...replicas]);
  }

  /** Show what is, except in a form that somebody is filling in. */
  reflect(now) {
    const set = (form, field, value) => {
      const input = this.forms[form].elements[field];
      if (!this.forms[form].dataset.touched && document.activeElement !== input && input.value !== value) input.value = value;
    };
    if (now.traffic) {
      set("traffic", "rate", String(now.traffic.rate));
      set("traffic", "policy", now.traffic.policy);
      set("traffic", "work", String(now.traffic.work));
    }
    if (now.work) {
      set("work", "service", now.work.service);
      set("work", "pause", now.work.pause.join("; "));
    }
    set("latency", "spec", now.faults.latency || "0");
  }
}
