// The API key: for this tab, or kept on this computer if its user says so.

import { h } from "./dom.js";

const NAME = "pomona.key";
let asking = null;

export function key() {
  return sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME) ?? "";
}

export function forgetKey() {
  sessionStorage.removeItem(NAME);
  localStorage.removeItem(NAME);
  showKeyButton();
}

/** Shown once a key is known, to change it. */
export function showKeyButton() {
  document.getElementById("key").hidden = key() === "";
}

/** Returns once there is a new one. Rejects if its user would rather not, or when `signal` aborts. */
export function askForKey(reason, signal) {
  asking ??= prompt(reason).finally(() => (asking = null));
  if (!signal) return asking;
  return Promise.race([
    asking,
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
  ]);
}

function prompt(reason) {
  const field = h("input", { id: "key-field", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const keep = h("input", { id: "key-keep", type: "checkbox" });
  const dialog = h(
    "dialog",
    { class: "card", "aria-labelledby": "key-title" },
    h("h2", { id: "key-title" }, "API key"),
    h("p", { class: "soft" }, reason),
    h(
      "form",
      { method: "dialog" },
      h("label", { for: "key-field" }, "Key"),
      field,
      h("label", { class: "check" }, keep, "Keep it on this computer"),
      h(
        "div",
        { class: "row end" },
        h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"),
        h("button", { class: "main" }, "Use it"),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve, reject) => {
    dialog.querySelector("form").addEventListener("submit", () => {
      forgetKey();
      (keep.checked ? localStorage : sessionStorage).setItem(NAME, field.value.trim());
      showKeyButton();
      resolve();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      reject(new Error("This server wants an API key."));
    });
  });
}
