// The fleet, live: a card for each host, and what has happened of late.

import { ask } from "./api.js";
import { count, h, short, size } from "./dom.js";
import { EngineView } from "./engine.js";
import { learn } from "./hosts.js";
import { Meter, setText } from "./meter.js";
import { events } from "./stream.js";

const RETRY_MS = 1000;
const PRESSURES = ["normal", "warning", "critical"];
const HEATS = ["cool", "warm", "hot", "trapping heat"];

export class Fleet {
  constructor() {
    this.hosts = new Map();
    this.state = h("p", { class: "pulse", role: "status" }, "Connecting…");
    this.sums = h("dl", { class: "sums" });
    this.grid = h("div", { class: "hosts" });
    this.feed = h("ol", { class: "feed" });
    this.element = h(
      "div",
      { class: "page fleet-view" },
      h("div", { class: "head" }, h("h1", {}, "Fleet"), this.state),
      this.sums,
      this.grid,
      h("section", { class: "events", "aria-labelledby": "feed-title" }, h("h2", { id: "feed-title" }, "Lately"), this.feed),
    );
    document.addEventListener("visibilitychange", () => this.following && (document.hidden ? this.pause() : this.resume()));
  }

  start() {
    return this.resume();
  }

  async resume() {
    this.pause();
    const following = new AbortController();
    this.following = following;
    while (!following.signal.aborted) {
      try {
        const response = await ask("v1/fleet", { headers: { Accept: "text/event-stream" }, signal: following.signal });
        for await (const { data } of events(response)) if (data) this.show(JSON.parse(data));
      } catch (error) {
        if (following.signal.aborted) return;
        this.element.classList.add("stale");
        this.state.textContent = `Not live: ${error.message}`;
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  pause() {
    this.following?.abort();
  }

  show(fleet) {
    learn(fleet);
    this.element.classList.remove("stale");
    const engines = fleet.hosts.flatMap((host) => host.engines);
    const there = engines.filter(({ state }) => state === "ready" || state === "draining");
    const missing = engines.filter(({ state }) => state === "silent" || state === "lost").length;
    setText(this.state, missing ? `Live · ${missing} not answering` : "Live");
    this.showSums(fleet, there);
    const seen = new Set();
    for (const host of fleet.hosts) {
      seen.add(host.node);
      if (!this.hosts.has(host.node)) this.hosts.set(host.node, new HostView());
      this.hosts.get(host.node).show(host);
    }
    for (const node of this.hosts.keys()) if (!seen.has(node)) this.hosts.delete(node);
    const cards = fleet.hosts.map(({ node }) => this.hosts.get(node).element);
    if (cards.length !== this.grid.children.length || cards.some((one, at) => this.grid.children[at] !== one)) {
      this.grid.replaceChildren(...cards);
    }
    this.showFeed(fleet.events);
  }

  showSums(fleet, engines) {
    const sum = (of) => engines.reduce((total, one) => total + of(one), 0);
    const sums = [
      ["tokens/s", count(sum((one) => one.tokens_per_second.generation))],
      ["running", sum((one) => one.requests_running)],
      ["waiting", sum((one) => one.requests_waiting)],
      ["engines", engines.length],
      ["hosts", fleet.hosts.length],
      ["gateways", Math.max(fleet.gateways.length, 1)],
    ];
    if (!this.sums.children.length) {
      this.sums.append(...sums.map(([name]) => h("div", {}, h("dt", {}, name), h("dd"))));
    }
    sums.forEach(([, value], at) => setText(this.sums.children[at].lastChild, String(value)));
  }

  showFeed(told) {
    const newest = told[0]?.id ?? 0;
    if (newest === this.newest) return;
    this.newest = newest;
    const time = (one) => new Date(one.time * 1000);
    const items = told.slice(0, 20).map((one) =>
      h(
        "li",
        { class: one.kind },
        h("time", { datetime: time(one).toISOString() }, time(one).toLocaleTimeString()),
        h("span", {}, ...sentence(one, (node) => this.hosts.get(node)?.name ?? node)),
      ),
    );
    this.feed.replaceChildren(...(items.length ? items : [h("li", { class: "soft" }, "Nothing has happened since this gateway started.")]));
  }
}

function sentence(event, nameOf) {
  const { kind, engine, node, model, to_engine: to, to_node: toNode, tokens } = event;
  const who = [h("strong", {}, nameOf(node)), h("code", {}, engine)];
  switch (kind) {
    case "joined":
      return [...who, ` serves ${model}.`];
    case "draining":
      return [...who, " finishes what it has, and goes."];
    case "left":
      return [...who, " has gone."];
    case "silent":
      return [...who, " gives no answer."];
    case "lost":
      return [...who, " is lost."];
    case "back":
      return [...who, " answers again."];
    case "deployed":
      return [...who, ` brings ${changes(event).join(", ")}.`];
    case "moved":
      return [`A stream of ${model} moved from `, ...who, " to ", h("strong", {}, nameOf(toNode)), h("code", {}, to), ` at token ${tokens}.`];
    default:
      return [...who, `: ${kind}.`];
  }
}

/** What is new in a deployment. */
function changes({ build, replaced }) {
  if (build.model !== replaced.model) return [`${build.model} instead of ${replaced.model}`];
  const isNew = (what) => build[what] && replaced[what] && build[what] !== replaced[what];
  const told = [];
  if (isNew("revision")) told.push(`revision ${short(build.revision)} of ${build.model} instead of ${short(replaced.revision)}`);
  if (isNew("version")) told.push(`Pomona ${build.version} instead of ${replaced.version}`);
  return told;
}

class HostView {
  constructor() {
    this.name = "";
    this.title = h("h2");
    this.about = h("p", { class: "soft" });
    this.memory = new Meter("Memory");
    this.signs = h("p", { class: "signs" });
    this.engines = new Map();
    this.list = h("div", { class: "engines" });
    this.element = h("article", { class: "host card" }, this.title, this.about, this.memory.element, this.signs, this.list);
  }

  show(host) {
    this.name = host.name || host.node;
    setText(this.title, this.name);
    setText(this.about, [host.chip, host.name && host.node].filter(Boolean).join(" · "));
    const { memory_total_bytes: total, memory_available_bytes: available } = host;
    const isKnown = total !== null && available !== null;
    this.memory.element.hidden = !isKnown;
    if (isKnown) this.memory.show([[(total - available) / total, "used"]], `${size(total - available)} of ${size(total)}`);
    this.showSigns(host);
    const isGone = host.engines.every(({ state }) => !["ready", "draining", "starting"].includes(state));
    this.element.classList.toggle("gone", isGone);
    for (const engine of host.engines) {
      if (!this.engines.has(engine.id)) this.engines.set(engine.id, new EngineView());
      this.engines.get(engine.id).show(engine);
    }
    const there = host.engines.map(({ id }) => this.engines.get(id).element);
    if (there.length !== this.list.children.length || there.some((one, at) => this.list.children[at] !== one)) {
      this.list.replaceChildren(...there);
    }
  }

  showSigns(host) {
    const signs = [];
    const pressure = host.memory_pressure_level;
    if (pressure !== null) signs.push(["memory pressure", PRESSURES[pressure], pressure]);
    const heat = host.thermal_pressure_level;
    if (heat !== null) signs.push(["", HEATS[heat] ?? "hot", heat]);
    else if (host.temperature_celsius !== null) signs.push(["", `${host.temperature_celsius.toFixed(0)} °C`, host.temperature_celsius > 90 ? 1 : 0]);
    if (host.gpu_utilization_ratio !== null) signs.push(["GPU", `${(host.gpu_utilization_ratio * 100).toFixed(0)} %`, 0]);
    if (host.swap_used_bytes) signs.push(["swap", size(host.swap_used_bytes), 0]);
    this.signs.replaceChildren(
      ...signs.map(([name, value, level]) => h("span", { class: level > 1 ? "bad" : level === 1 ? "warn" : "" }, [name, value].filter(Boolean).join(" "))),
    );
  }
}
