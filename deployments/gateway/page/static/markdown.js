// Markdown as nodes, while it arrives: blocks that are whole are built once, only the last one again.

import { copyButton, h } from "./dom.js";
import { highlightLine, language } from "./highlight.js";
import { inline } from "./inline.js";

// Patterns here take time in proportion to a line, whatever a model writes.
const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(?=\S)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const DISPLAY_MATH = { "$$": "$$", "\\[": "\\]" };
const MOST_NESTED = 10;
const MOST_COLUMNS = 40;
const LONGEST_ROW = 4000;

/** A text that grows, shown in `container`. */
export class MarkdownStream {
  constructor(container) {
    this.container = container;
    this.tail = "";
    // Nodes of what may still change, and the view of code that is the first of it.
    this.open = [];
    this.code = null;
  }

  append(text) {
    this.tail += text;
    const lines = this.tail.split("\n");
    const blocks = parse(lines, 0);
    if (!blocks.length) return;
    // A block is done once another one has begun behind it, in a line that is whole.
    const firstOpen = blocks.findIndex((_, at) => !(blocks[at + 1]?.begin < lines.length - 1));
    const kept = blocks[0].kind === "fence" ? this.code : null;
    this.open.forEach((node) => node !== kept?.element && node.remove());
    this.open = [];
    this.code = null;
    blocks.forEach((block, at) => {
      const view = at === 0 && kept ? kept : block.kind === "fence" ? new CodeView() : null;
      view?.show(block);
      const nodes = view ? [view.element] : build(block);
      if (view !== kept || !kept) this.container.append(...nodes);
      if (at >= firstOpen) this.open.push(...nodes);
      if (at === firstOpen) this.code = view;
    });
    this.tail = lines.slice(blocks[firstOpen].begin).join("\n");
  }
}

export function markdown(text) {
  const made = h("div", { class: "prose" });
  new MarkdownStream(made).append(text);
  return made;
}

/** Blocks, each with the number of its first line. */
function parse(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const begin = at;
    const line = lines[at];
    let found;
    if (!line.trim()) {
      at += 1;
      continue;
    }
    if ((found = fence(line))) {
      const { marker, name } = found;
      const end = new RegExp(`^ {0,3}${marker[0]}{${marker.length},}[ \\t]*$`);
      const held = [];
      at += 1;
      while (at < lines.length && !end.test(lines[at])) held.push(lines[at++]);
      blocks.push({ kind: "fence", begin, name, lines: held, isWhole: at < lines.length });
      at += 1;
    } else if ((found = HEADING.exec(line))) {
      blocks.push({ kind: "heading", begin, level: found[1].length, text: withoutEnd(line.slice(found[0].length)) });
      at += 1;
    } else if (RULE.test(line)) {
      blocks.push({ kind: "rule", begin });
      at += 1;
    } else if (DISPLAY_MATH[line.trim().slice(0, 2)]) {
      const end = DISPLAY_MATH[line.trim().slice(0, 2)];
      const held = [line];
      at += 1;
      if (!line.trim().slice(2).includes(end)) {
        while (at < lines.length && lines[at].trim()) {
          held.push(lines[at++]);
          if (held.at(-1).includes(end)) break;
        }
      }
      blocks.push({ kind: "math", begin, text: held.join("\n") });
    } else if (depth < MOST_NESTED && QUOTE.test(line)) {
      const held = [];
      while (at < lines.length && lines[at].trim() && (QUOTE.test(lines[at]) || !begins(lines, at))) {
        held.push(lines[at++].replace(QUOTE, ""));
      }
      blocks.push({ kind: "quote", begin, blocks: parse(held, depth + 1) });
    } else if (depth < MOST_NESTED && ITEM.test(line)) {
      const list = parseList(lines, at, depth);
      blocks.push({ kind: "list", begin, ...list });
      at = list.end;
    } else if (isTable(lines, at)) {
      const align = cells(lines[at + 1]).map((one) => alignment(one.trim()));
      const rows = [cells(line)];
      at += 2;
      while (at < lines.length && lines[at].includes("|") && lines[at].trim()) rows.push(cells(lines[at++]));
      blocks.push({ kind: "table", begin, align, rows });
    } else {
      const held = [];
      do held.push(lines[at++].trimStart());
      while (at < lines.length && lines[at].trim() && !begins(lines, at));
      blocks.push({ kind: "paragraph", begin, text: held.join("\n") });
    }
  }
  return blocks;
}

function fence(line) {
  const found = FENCE.exec(line);
  if (!found) return null;
  const name = line.slice(found[0].length).trim();
  // Ticks behind ticks are code within a line.
  if (found[1][0] === "`" && name.includes("`")) return null;
  return { marker: found[1], name: name.split(/\s/, 1)[0] };
}

/** A heading may end as it began. */
function withoutEnd(heading) {
  const text = heading.trim();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  return end === 0 || /\s/.test(text[end - 1]) ? text.slice(0, end).trim() : text;
}

/** Whether a block begins here that ends a paragraph. */
function begins(lines, at) {
  const line = lines[at];
  return (
    fence(line) !== null || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || isTable(lines, at) ||
    /^ {0,3}([-*+]|1[.)])[ \t]+\S/.test(line)
  );
}

function parseList(lines, at, depth) {
  const [, , marker] = ITEM.exec(lines[at]);
  const kind = marker.at(-1);
  const items = [];
  let isLoose = false;
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[2].at(-1) !== kind || RULE.test(lines[at])) break;
    const indent = Math.min(found[0].length, found[1].length + found[2].length + 4);
    const held = [lines[at++].slice(found[0].length)];
    while (at < lines.length) {
      const line = lines[at];
      const next = nextText(lines, at);
      if (next === lines.length) break;
      const isInside = /^\s*/.exec(lines[next])[0].length >= indent;
      if (!line.trim()) {
        if (!isInside) break;
        isLoose = true;
        for (; at < next; at += 1) held.push("");
        continue;
      } else if (!isInside && (ITEM.test(line) || begins(lines, at) || !lines[at - 1].trim())) break;
      held.push(line.slice(Math.min(indent, /^\s*/.exec(line)[0].length)));
      at += 1;
    }
    items.push(parse(held, depth + 1));
    const next = nextText(lines, at);
    if (next > at && next < lines.length && ITEM.exec(lines[next])?.[2].at(-1) === kind) {
      isLoose = true;
      at = next;
    }
  }
  const start = Number.parseInt(marker, 10);
  return { items, isLoose, start: Number.isNaN(start) ? null : start, end: at };
}

/** The number of the first line from `at` on that is not blank. */
function nextText(lines, at) {
  while (at < lines.length && !lines[at].trim()) at += 1;
  return at;
}

function isTable(lines, at) {
  const line = lines[at];
  const next = lines[at + 1];
  if (!next || next.length > LONGEST_ROW || !line.includes("|") || !next.includes("-") || !DELIMITERS.test(next)) return false;
  return cells(line).length === cells(next).length && cells(line).length <= MOST_COLUMNS;
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return inner.split(/(?<!\\)\|/).map((one) => one.trim().replace(/\\\|/g, "|"));
}

function alignment(delimiter) {
  if (!delimiter.endsWith(":")) return null;
  return delimiter.startsWith(":") ? "center" : "right";
}

/** The nodes of a block. */
function build(block) {
  switch (block.kind) {
    case "fence":
      return [codeOf(block)];
    case "heading":
      // The page has a heading of its own above them.
      return [h(`h${Math.min(block.level + 2, 6)}`, {}, ...inline(block.text))];
    case "rule":
      return [h("hr")];
    case "math":
      return [h("p", { class: "math" }, block.text)];
    case "quote":
      return [h("blockquote", {}, ...block.blocks.flatMap(build))];
    case "list":
      return [buildList(block)];
    case "table":
      return [buildTable(block)];
    default:
      return [h("p", {}, ...inline(block.text))];
  }
}

function buildList({ items, start, isLoose }) {
  const made = start === null ? h("ul") : h("ol", { start: start === 1 ? null : start });
  for (const blocks of items) {
    const [first, ...rest] = blocks;
    const isPlain = !isLoose && first?.kind === "paragraph";
    const text = isPlain ? taskOrText(first.text) : [];
    made.append(h("li", {}, ...text, ...(isPlain ? rest : blocks).flatMap(build)));
  }
  return made;
}

function taskOrText(text) {
  const task = /^\[([ xX])\] /.exec(text);
  if (!task) return inline(text);
  return [task[1] === " " ? "☐ " : "☑ ", ...inline(text.slice(4))];
}

function buildTable({ align, rows }) {
  const row = (tag, held) =>
    h("tr", {}, ...align.map((side, index) => h(tag, { class: side }, ...inline(held[index] ?? ""))));
  const [head, ...body] = rows;
  const table = h(
    "table",
    {},
    h("thead", {}, row("th", head)),
    h("tbody", {}, ...body.map((held) => row("td", held))),
  );
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Table" }, table);
}

function codeOf(block) {
  const view = new CodeView();
  view.show(block);
  return view.element;
}

/** A block of code: lines that are whole are built once. */
class CodeView {
  constructor() {
    this.rules = null;
    this.state = null;
    this.numWhole = 0;
    this.text = h("code");
    this.rest = document.createTextNode("");
    this.text.append(this.rest);
    const copy = copyButton(() => this.text.textContent);
    this.name = h("span");
    this.element = h("figure", { class: "code" }, h("figcaption", {}, this.name, copy), h("pre", { tabindex: 0 }, this.text));
  }

  show({ name, lines, isWhole }) {
    if (!this.numWhole) {
      // Its first line may have been on its way.
      this.rules = language(name);
      this.name.textContent = name || "text";
    }
    const numWhole = isWhole ? lines.length : Math.max(lines.length - 1, 0);
    const made = [];
    for (; this.numWhole < numWhole; this.numWhole += 1) {
      const [nodes, state] = highlightLine(lines[this.numWhole], this.rules, this.state);
      this.state = state;
      made.push(...nodes, "\n");
    }
    if (made.length) this.rest.before(...made);
    this.rest.data = isWhole ? "" : (lines.at(-1) ?? "");
  }
}
