// What is asked of a model, kept in this browser, and the dialog to change it.

import { h } from "./dom.js";

const NAME = "pomona.settings";
const FIELDS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.05 }, "0 always takes the likeliest token."],
  ["top_p", "Top p", { min: 0.01, max: 1, step: 0.01 }, "Leaves out what is least likely."],
  ["max_tokens", "Most tokens", { min: 1, step: 1 }, "Of an answer."],
  ["seed", "Seed", { step: 1 }, "The same one gives the same answer."],
];
const EFFORTS = ["", "none", "low", "medium", "high"];

export function settings() {
  return JSON.parse(localStorage.getItem(NAME) ?? "{}");
}

export function change(changes) {
  localStorage.setItem(NAME, JSON.stringify({ ...settings(), ...changes }));
}

/** The members of a request. */
export function sampling() {
  const set = settings();
  const names = [...FIELDS.map(([name]) => name), "reasoning_effort"];
  return Object.fromEntries(names.filter((name) => ![undefined, "", null].includes(set[name])).map((name) => [name, set[name]]));
}

export function openSettings() {
  const set = settings();
  const number = ([name, label, limits, told]) =>
    h(
      "label",
      {},
      label,
      h("input", {
        type: "number",
        value: set[name] ?? "",
        placeholder: "the model's own",
        ...limits,
        onchange: ({ target }) => target.reportValidity() && change({ [name]: target.value === "" ? null : Number(target.value) }),
      }),
      h("small", {}, told),
    );
  const efforts = EFFORTS.map((one) => {
    const selected = (set.reasoning_effort ?? "") === one;
    return h("option", { value: one, selected }, one === "" ? "the model's own" : one);
  });
  const dialog = h(
    "dialog",
    { class: "card settings", "aria-labelledby": "settings-title", onclose: () => dialog.remove() },
    h("h2", { id: "settings-title" }, "Settings"),
    h(
      "form",
      { method: "dialog" },
      h(
        "label",
        {},
        "System prompt",
        h("textarea", { rows: 4, id: "system", value: set.system ?? "", onchange: ({ target }) => change({ system: target.value }) }),
      ),
      h("div", { class: "fields" }, ...FIELDS.map(number)),
      h(
        "label",
        {},
        "Thinking",
        h("select", { onchange: ({ target }) => change({ reasoning_effort: target.value }) }, ...efforts),
      ),
      h("div", { class: "row end" }, h("button", { class: "main" }, "Done")),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
}
