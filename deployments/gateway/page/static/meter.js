// Bars.

import { h } from "./dom.js";

/** A bar with its name and what it says in words. */
export class Meter {
  constructor(name) {
    this.value = h("span", { class: "value" });
    this.track = h("div", { class: "track", "aria-hidden": "true" });
    this.element = h("div", { class: "meter" }, h("span", { class: "name" }, name), this.value, this.track);
  }

  /** `parts`: shares of the whole, each with the class that colours it. */
  show(parts, told) {
    setText(this.value, told);
    while (this.track.children.length < parts.length) this.track.append(h("i"));
    parts.forEach(([share, kind], at) => {
      const part = this.track.children[at];
      part.className = kind;
      part.style.width = `${(100 * Math.min(Math.max(share, 0), 1)).toFixed(2)}%`;
    });
  }
}

/** Leaves alone what says so already: a change is news to screen readers. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
