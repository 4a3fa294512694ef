// A plain text that grows: more of it has the browser lay out its last part again, and no other.

import { h } from "./dom.js";

const LONG_PART = 2000;

export class TextStream {
  constructor(container) {
    this.container = container;
    this.last = null;
    this.isFull = true;
  }

  append(text) {
    for (const line of text.split(/(?<=\n)/)) {
      if (this.isFull) this.begin();
      this.last.appendData(line);
      this.isFull = line.endsWith("\n") && this.last.length >= LONG_PART;
    }
  }

  begin() {
    this.last = document.createTextNode("");
    this.container.append(h("div", {}, this.last));
  }
}
