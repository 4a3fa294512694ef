// Markdown as nodes, while it arrives: what is whole is built once, only the end of the last block again.

import { parse } from "./blocks.js";
import { CodeView } from "./code.js";
import { h } from "./dom.js";
import { inline } from "./inline.js";

/** A text that grows, shown in `container`. */
export class MarkdownStream {
  constructor(container) {
    this.container = container;
    this.tail = "";
    // What the tail goes on with: a block of which something is done, and its view.
    this.going = null;
    this.view = null;
    // Nodes of what may still change.
    this.open = [];
  }

  append(text) {
    this.tail += text;
    const lines = this.tail.split("\n");
    const blocks = parse(lines, 0, this.going);
    if (!blocks.length) return;
    const numWhole = lines.length - 1;
    const firstOpen = numDone(blocks, numWhole);
    this.open.forEach((node) => node.remove());
    this.open = [];
    let from = blocks[firstOpen].begin;
    let { going, view } = this;
    blocks.forEach((block, at) => {
      const isOn = at === 0 && going !== null;
      if (!isOn) {
        view = block.kind in VIEWS ? new VIEWS[block.kind](block) : null;
        const nodes = view ? [view.element] : build(block);
        this.container.append(...nodes);
        if (at > firstOpen || (at === firstOpen && !view)) this.open.push(...nodes);
      }
      if (at !== firstOpen) return view?.show(block);
      // Of a block that has only begun nothing is kept: it may become another one.
      const done = Math.min(view?.show(block, numWhole) ?? 0, numWhole);
      const isKept = isOn || done > block.begin;
      if (isKept) from = done;
      else if (view) this.open.push(view.element);
      [this.going, this.view] = isKept ? [block, view] : [null, null];
    });
    this.tail = lines.slice(from).join("\n");
  }
}

export function markdown(text) {
  const made = h("div", { class: "prose" });
  new MarkdownStream(made).append(text);
  return made;
}

/** Of blocks, or items: each is done once another one has begun behind it, in a line that is whole. */
function numDone(those, numWhole) {
  const open = those.findIndex((_, at) => !(those[at + 1]?.begin < numWhole));
  return Math.max(open, 0);
}

/** The nodes of a block. */
function build(block) {
  switch (block.kind) {
    case "heading":
      // The page has a heading of its own above them.
      return [h(`h${Math.min(block.level + 2, 6)}`, {}, ...inline(block.text))];
    case "rule":
      return [h("hr")];
    case "math":
      return [h("p", { class: "math" }, block.text)];
    case "paragraph":
      return [h("p", {}, ...inline(block.text))];
    default: {
      const view = new VIEWS[block.kind](block);
      view.show(block);
      return [view.element];
    }
  }
}

/** Something of parts, of which those that are done are built once. */
class Parts {
  constructor(element) {
    this.element = element;
    this.open = [];
    this.numDone = 0;
  }

  /** Show parts that have a `begin`, as `make` builds them; returns the number of the first line that
   * may still change one. */
  showParts(parts, numWhole, make) {
    this.open.forEach((node) => node.remove());
    const firstOpen = numDone(parts, numWhole);
    const nodes = parts.map((part, at) => {
      const made = make(part);
      this.place(this.numDone + at).append(...made);
      return made;
    });
    this.open = nodes.slice(firstOpen).flat();
    this.numDone += firstOpen;
    return parts[firstOpen]?.begin ?? 0;
  }

  /** Where the part with a number goes. */
  place() {
    return this.element;
  }
}

// A part more has the browser look through all of its list or table again: a long one goes on as another.
const LONG = 50;

class ListView extends Parts {
  constructor({ start }) {
    const list = (from, kind) => (start === null ? h("ul", { class: kind }) : h("ol", { class: kind, start: from === 1 ? null : from }));
    super(list(start, null));
    this.lists = [this.element];
    this.next = (number) => list(start + number, "on");
  }

  show({ items }, numWhole = Infinity) {
    return this.showParts(items, numWhole, (item) => [buildItem(item)]);
  }

  place(number) {
    const last = this.lists.at(-1);
    // One within another block has no place yet where it could go on.
    if (number < LONG * this.lists.length || !last.parentNode) return this.lists[Math.min(Math.floor(number / LONG), this.lists.length - 1)];
    this.lists.push(this.next(number));
    last.after(this.lists.at(-1));
    return this.lists.at(-1);
  }
}

class QuoteView extends Parts {
  constructor() {
    super(h("blockquote"));
  }

  show({ from, blocks }, numWhole = Infinity) {
    const parts = blocks.map((block) => ({ ...block, begin: from + block.begin }));
    return this.showParts(parts, numWhole, build);
  }
}

class TableView extends Parts {
  constructor({ head, align }) {
    super(h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Table" }));
    this.head = head;
    this.align = align;
    this.bodies = [];
    this.place(0);
  }

  show({ from, rows }, numWhole = Infinity) {
    const parts = rows.map((held, at) => ({ begin: from + at, held }));
    return this.showParts(parts, numWhole, ({ held }) => [this.row("td", held)]);
  }

  place(number) {
    const index = Math.floor(number / LONG);
    if (index === this.bodies.length) {
      const body = h("tbody");
      this.bodies.push(body);
      this.element.append(h("table", {}, h("thead", {}, this.row("th", this.head)), body));
    }
    return this.bodies[index];
  }

  row(tag, held) {
    return h("tr", {}, ...this.align.map((side, at) => h(tag, { class: side }, ...inline(held[at] ?? ""))));
  }
}

/**
 * Blocks that may become long: `show` is given what is left of one, builds it, and returns the number of
 * the first line that may still change it. It is not given again what stands before that line.
 */
const VIEWS = { fence: CodeView, list: ListView, quote: QuoteView, table: TableView };

function buildItem({ blocks, isLoose }) {
  const [first, ...rest] = blocks;
  const isPlain = !isLoose && first?.kind === "paragraph";
  const text = isPlain ? taskOrText(first.text) : [];
  return h("li", {}, ...text, ...(isPlain ? rest : blocks).flatMap(build));
}

function taskOrText(text) {
  const task = /^\[([ xX])\] /.exec(text);
  if (!task) return inline(text);
  return [task[1] === " " ? "☐ " : "☑ ", ...inline(text.slice(4))];
}
