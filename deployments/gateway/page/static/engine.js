// One engine: its batch as lanes, its speed, its KV cache; and all of its numbers, if one asks.

import { button, count, h, short, size, svg } from "./dom.js";
import { Meter, setText } from "./meter.js";

const MOST_LANES = 48;
const LEAST_SCALE = 256;
const HISTORY = 60;

export class EngineView {
  constructor() {
    this.model = h("button", { type: "button", class: "model", onclick: () => this.open() });
    this.state = h("span", { class: "state" });
    this.rate = h("strong");
    this.line = svg("polyline", { class: "curve" });
    this.area = svg("polygon", { class: "area" });
    this.spark = svg("svg", { class: "spark", viewBox: `0 0 ${HISTORY} 20`, preserveAspectRatio: "none", "aria-hidden": "true" }, this.area, this.line);
    this.lanes = new Map();
    this.batch = h("div", { class: "lanes", "aria-hidden": "true" });
    this.load = h("p", { class: "load" });
    this.cache = new Meter("KV cache");
    this.element = h(
      "section",
      { class: "engine" },
      h("div", { class: "row" }, this.model, this.state),
      h("div", { class: "speed" }, h("span", {}, this.rate, " tokens/s"), this.spark),
      this.batch,
      this.load,
      this.cache.element,
    );
  }

  show(engine) {
    this.engine = engine;
    this.element.dataset.id = engine.id;
    this.element.dataset.state = engine.state;
    setText(this.model, engine.model);
    this.model.setAttribute("aria-label", `${engine.model}: all numbers of engine ${engine.id}`);
    setText(this.state, engine.state);
    setText(this.rate, count(engine.tokens_per_second.generation));
    this.showCurve(engine.tokens_per_second);
    this.showLanes(engine);
    const { prefix_cache_hit_tokens: hits, prefix_cache_query_tokens: asked } = engine;
    const load = [
      `${engine.requests_running}${engine.max_num_seqs ? ` of ${engine.max_num_seqs}` : ""} running`,
      `${engine.requests_waiting} waiting`,
      asked ? `${((100 * hits) / asked).toFixed(0)} % prefix hits` : null,
    ];
    setText(this.load, load.filter(Boolean).join(" · "));
    const { total, held, cached, usage_ratio: usage } = engine.kv_cache;
    this.cache.element.hidden = !total;
    if (total) {
      const told = `${(usage * 100).toFixed(0)} % held, ${((100 * cached) / total).toFixed(0)} % cached`;
      this.cache.show([[held / total, "held"], [cached / total, "cached"]], told);
    }
    if (this.dialog?.open) this.showNumbers();
  }

  showCurve({ history, generation }) {
    const values = [...history, generation].slice(-HISTORY);
    const most = Math.max(...values, 1);
    const from = HISTORY - values.length;
    const points = values.map((value, at) => `${from + at + 0.5},${(19 - (18 * value) / most).toFixed(2)}`);
    this.line.setAttribute("points", points.join(" "));
    this.area.setAttribute("points", `${from + 0.5},20 ${points.join(" ")} ${HISTORY - 0.5},20`);
  }

  showLanes({ lanes }) {
    const shown = lanes.slice(0, MOST_LANES);
    const scale = Math.max(LEAST_SCALE, ...shown.map((one) => one.prompt_tokens + one.generated_tokens));
    const ids = new Set(shown.map(({ id }) => id));
    for (const [id, lane] of this.lanes) {
      if (!ids.has(id)) {
        lane.element.remove();
        this.lanes.delete(id);
      }
    }
    for (const one of shown) {
      if (!this.lanes.has(one.id)) {
        const made = new Lane();
        this.lanes.set(one.id, made);
        this.batch.append(made.element);
      }
      this.lanes.get(one.id).show(one, scale);
    }
  }

  open() {
    this.numbers = h("dl", { class: "numbers" });
    this.dialog = h(
      "dialog",
      { class: "card", "aria-labelledby": "engine-title", onclose: () => this.dialog.remove() },
      h(
        "div",
        { class: "row" },
        h("h2", { id: "engine-title" }, this.engine.model),
        h("span", { class: "grow" }),
        button("Close", "close", () => this.dialog.close()),
      ),
      this.numbers,
    );
    this.showNumbers();
    document.body.append(this.dialog);
    this.dialog.showModal();
  }

  showNumbers() {
    const one = this.engine;
    const numbers = [
      ["Engine", one.id],
      ["State", one.state],
      ["Revision", one.revision ? short(one.revision) : "–"],
      ["Pomona", one.version ?? "–"],
      ["Context", `${one.max_model_len} tokens`],
      ["Attention", one.attention ?? "–"],
      ["Now", `${one.tokens_per_second.generation} generated, ${one.tokens_per_second.prompt} prompt tokens/s`],
      ["Requests", `${one.requests_running} running, ${one.requests_waiting} waiting`],
      ["Memory of its arrays", size(one.memory_active_bytes)],
      ["KV cache", `${one.kv_cache.held} held, ${one.kv_cache.cached} cached of ${one.kv_cache.total} blocks`],
      ["Prompt tokens", count(one.prompt_tokens)],
      ["Of these cached", `${count(one.prefix_cache_hit_tokens)} of ${count(one.prefix_cache_query_tokens)}`],
      ["Generated tokens", count(one.generation_tokens)],
      ["Preemptions", one.preemptions],
      ...one.lanes.slice(0, MOST_LANES).map((lane, at) => [
        `Sequence ${at + 1}`,
        `prompt ${lane.computed_tokens}/${lane.prompt_tokens}, generated ${lane.generated_tokens}`,
      ]),
    ];
    this.numbers.replaceChildren(...numbers.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]));
  }
}

/** A sequence: its prompt, what of it is computed, and what it has generated. */
class Lane {
  constructor() {
    this.computed = h("i", { class: "computed" });
    this.prompt = h("i", { class: "prompt" }, this.computed);
    this.generated = h("i", { class: "generated" });
    this.element = h("div", { class: "lane" }, this.prompt, this.generated);
  }

  show({ prompt_tokens: prompt, computed_tokens: computed, generated_tokens: generated }, scale) {
    this.element.classList.toggle("waiting", computed === 0 && generated === 0);
    this.prompt.style.width = percent(prompt / scale);
    this.computed.style.width = percent(prompt ? computed / prompt : 1);
    this.generated.style.width = percent(generated / scale);
  }
}

function percent(share) {
  return `${(100 * Math.min(share, 1)).toFixed(2)}%`;
}
