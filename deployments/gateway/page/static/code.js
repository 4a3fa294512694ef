// A block of code that grows: lines that are whole are built once.

import { copyButton, h } from "./dom.js";
import { highlightLine, language } from "./highlight.js";

// Lines in one part: a line more has the browser lay out the last part again, and no other.
const LINES_OF_A_PART = 32;

export class CodeView {
  constructor({ name }) {
    this.rules = language(name);
    this.state = null;
    this.numLines = 0;
    this.text = h("code");
    this.part = this.text;
    this.rest = document.createTextNode("");
    this.begin();
    const caption = h("figcaption", {}, h("span", {}, name || "text"), copyButton(() => this.text.textContent));
    this.element = h("figure", { class: "code" }, caption, h("pre", { tabindex: 0 }, this.text));
  }

  begin() {
    this.part = h("span", { class: "part" }, this.rest);
    this.text.append(this.part);
  }

  /** Lines that are new, of which the last one may not be whole. Returns the number of the first that was not. */
  show({ from, lines, isWhole }) {
    const numWhole = isWhole ? lines.length : Math.max(lines.length - 1, 0);
    for (let at = 0; at < numWhole; at += 1) {
      const [nodes, state] = highlightLine(lines[at], this.rules, this.state);
      this.state = state;
      this.rest.before(...nodes, "\n");
      this.numLines += 1;
      if (this.numLines % LINES_OF_A_PART === 0) this.begin();
    }
    this.rest.data = isWhole ? "" : (lines.at(-1) ?? "");
    return from + numWhole;
  }
}
