// Markdown within a line: a list of nodes. One pass, no recursion; whatever is not understood is text.

import { h } from "./dom.js";

const SCHEMES = /^(https?:\/\/|mailto:)[^\s<>"\\]+$/i;
const BARE_LINK = /https?:\/\/[^\s<>"'`\\|)\]]+/iy;
const MARKERS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };
const MOST_NESTED = 16;
const LONGEST_TARGET = 1000;
const WORD = /[\p{L}\p{N}]/u;

/** The address, if a page may lead there; null: it is shown as text. */
export function safeTarget(address) {
  const target = address.trim();
  return SCHEMES.test(target) ? target : null;
}

export function link(target, ...children) {
  return h("a", { href: target, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

export function inline(text) {
  return new Inline(text).nodes();
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.plain = "";
    this.made = [];
    // Markers that wait for their end: what they are, and where in `made` what they hold begins.
    this.open = [];
    // Lengths of runs of backticks that nothing ends any more.
    this.endless = new Set();
  }

  nodes() {
    const { text } = this;
    while (this.at < text.length) {
      const step = STEPS[text[this.at]];
      if (!(step && this[step]())) this.plain += text[this.at++];
    }
    this.flush();
    return this.made;
  }

  flush() {
    if (this.plain) this.made.push(document.createTextNode(this.plain));
    this.plain = "";
  }

  push(node, to) {
    this.flush();
    this.made.push(node);
    this.at = to;
    return true;
  }

  /** What `open[index]` holds becomes one node; markers within it that had no end are text. */
  close(index, make) {
    this.flush();
    const { begin } = this.open[index];
    this.open.length = index;
    // The marker itself is the first node.
    const held = this.made.splice(begin).slice(1);
    this.made.push(make(held));
  }

  begin(marker) {
    if (this.open.length >= MOST_NESTED) return false;
    this.flush();
    this.open.push({ marker, begin: this.made.length });
    return this.push(document.createTextNode(marker), this.at + marker.length);
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "(" || next === "[") return this.math(`\\${next}`, next === "(" ? "\\)" : "\\]");
    if (next === "\n") return this.push(h("br"), this.at + 2);
    if (!next || !/[!-/:-@[-`{-~]/.test(next)) return false;
    this.plain += next;
    this.at += 2;
    return true;
  }

  code() {
    let run = this.at;
    while (this.text[run] === "`") run += 1;
    const ticks = run - this.at;
    if (!this.endless.has(ticks)) {
      let at = run;
      while ((at = this.text.indexOf("`", at)) >= 0) {
        let end = at;
        while (this.text[end] === "`") end += 1;
        if (end - at === ticks) {
          const held = this.text.slice(run, at).replace(/\n/g, " ");
          const padded = held.startsWith(" ") && held.endsWith(" ") && held.trim() !== "";
          return this.push(h("code", {}, padded ? held.slice(1, -1) : held), end);
        }
        at = end;
      }
      this.endless.add(ticks);
    }
    this.plain += this.text.slice(this.at, run);
    this.at = run;
    return true;
  }

  dollars() {
    const marker = this.text[this.at + 1] === "$" ? "$$" : "$";
    const next = this.text[this.at + marker.length];
    return next !== undefined && next.trim() !== "" && this.math(marker, marker);
  }

  /** Formulas stay as they are written: underscores and stars in them mean nothing. */
  math(begin, end) {
    const from = this.at + begin.length;
    const to = this.text.slice(from, from + LONGEST_TARGET).indexOf(end);
    if (to < 1) return false;
    const held = this.text.slice(from, from + to);
    // Between two prices there are words, and a blank before the second.
    if (begin === "$" && (/\s$/.test(held) || /\n/.test(held) || /\d/.test(this.text[from + to + 1] ?? ""))) return false;
    return this.push(h("span", { class: "math" }, begin + held + end), from + to + end.length);
  }

  emphasis() {
    const { text, at } = this;
    const one = text[at];
    // Of three that end both, the first ends what was opened last.
    const isInner = this.open.at(-1)?.marker === one && text.startsWith(one.repeat(3), at);
    const marker = text[at + 1] === one && !isInner ? one + one : one;
    if (!MARKERS[marker]) return false;
    const before = text[at - 1] ?? " ";
    const after = text[at + marker.length] ?? " ";
    const inWord = one === "_" && WORD.test(before) && WORD.test(after);
    if (!inWord && before.trim()) {
      const index = this.open.findLastIndex((held) => held.marker === marker);
      if (index >= 0 && (this.open[index].begin < this.made.length - 1 || this.plain)) {
        this.close(index, (held) => h(MARKERS[marker], {}, ...held));
        this.at += marker.length;
        return true;
      }
    }
    if (!inWord && after.trim()) return this.begin(marker);
    this.plain += marker;
    this.at += marker.length;
    return true;
  }

  bracket() {
    return this.begin("[");
  }

  /** Pictures would have the browser ask another server: they are links to themselves. */
  picture() {
    if (this.text[this.at + 1] !== "[") return false;
    this.at += 1;
    return this.begin("[") || ((this.at -= 1), false);
  }

  bracketEnd() {
    const index = this.open.findLastIndex((held) => held.marker === "[");
    if (index < 0) return false;
    const found = this.text[this.at + 1] === "(" ? this.target(this.at + 2) : null;
    if (!found) {
      this.open.length = index;
      return false;
    }
    const target = safeTarget(found.address);
    this.close(index, (held) =>
      target
        ? link(target, ...(held.length ? held : [document.createTextNode(target)]))
        : h("span", {}, "[", ...held, `](${found.address})`),
    );
    this.at = found.end;
    return true;
  }

  target(from) {
    const { text } = this;
    let depth = 1;
    for (let at = from; at < Math.min(text.length, from + LONGEST_TARGET); at += 1) {
      const one = text[at];
      if (one === "\n") return null;
      if (one === "(") depth += 1;
      if (one === ")") depth -= 1;
      if (depth === 0) {
        const [address] = text.slice(from, at).trim().replace(/^<(.*)>$/, "$1").split(/\s+["'(]/, 1);
        return { address, end: at + 1 };
      }
    }
    return null;
  }

  angle() {
    const end = this.text.slice(this.at, this.at + LONGEST_TARGET).indexOf(">");
    if (end < 0) return false;
    const held = this.text.slice(this.at + 1, this.at + end);
    if (/^br\s*\/?$/i.test(held)) return this.push(h("br"), this.at + end + 1);
    const target = safeTarget(held);
    return target !== null && this.push(link(target, target), this.at + end + 1);
  }

  bare() {
    if (WORD.test(this.text[this.at - 1] ?? " ")) return false;
    BARE_LINK.lastIndex = this.at;
    const found = BARE_LINK.exec(this.text);
    if (!found) return false;
    let end = found[0].length;
    // A sentence may end behind it.
    while (".,;:!?".includes(found[0][end - 1])) end -= 1;
    const target = found[0].slice(0, end);
    return this.push(link(target, target), this.at + target.length);
  }

  line() {
    const breaks = this.plain.endsWith("  ");
    this.plain = `${this.plain.trimEnd()}${breaks ? "" : "\n"}`;
    this.flush();
    if (breaks) this.made.push(h("br"));
    this.at += 1;
    return true;
  }
}

const STEPS = {
  "\\": "escape",
  "`": "code",
  $: "dollars",
  "*": "emphasis",
  _: "emphasis",
  "~": "emphasis",
  "[": "bracket",
  "!": "picture",
  "]": "bracketEnd",
  "<": "angle",
  h: "bare",
  H: "bare",
  "\n": "line",
};
