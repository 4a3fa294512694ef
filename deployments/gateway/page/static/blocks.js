// Markdown as blocks: what a line begins, what it goes on with, and where that ends.

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
// A line that is longer than both is cut where a word ends, if one does before both.
const LONGEST_PARAGRAPH = 2000;
const LONGEST_WORD = 200;
const LETTER = /\p{L}/u;

/**
 * Blocks, each with the number of its first line. `going`: what the first line goes on with, of a block
 * whose beginning was read before.
 */
export function parse(lines, depth = 0, going = null) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const begin = at;
    const [block, end] = going ? goOn(going, lines, depth) : read(lines, at, depth);
    if (block) blocks.push({ begin, ...block });
    going = null;
    at = end;
  }
  return blocks;
}

/** The block that begins in a line, null if that is blank; and the number of the first line behind it. */
function read(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  const fenced = fence(line);
  if (fenced) return readFence(fenced, lines, at + 1);
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: "heading", level: heading[1].length, text: withoutEnd(line.slice(heading[0].length)) }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (DISPLAY_MATH[line.trim().slice(0, 2)]) return readMath(lines, at);
  if (depth < MOST_NESTED && QUOTE.test(line)) return readQuote(lines, at, depth);
  if (depth < MOST_NESTED && ITEM.test(line)) return readList(lines, at, depth);
  if (isTable(lines, at)) {
    const align = cells(lines[at + 1]).map((one) => alignment(one.trim()));
    return readTable({ head: cells(line), align }, lines, at + 2);
  }
  return readParagraph(lines, at, depth);
}

function goOn(going, lines, depth) {
  if (going.kind === "fence") return readFence(going, lines, 0);
  if (going.kind === "quote") return readQuote(lines, 0, depth);
  if (going.kind === "list") return readList(lines, 0, depth);
  return readTable(going, lines, 0);
}

function readFence({ marker, name }, lines, at) {
  const end = new RegExp(`^ {0,3}${marker[0]}{${marker.length},}[ \\t]*$`);
  const from = at;
  while (at < lines.length && !end.test(lines[at])) at += 1;
  return [{ kind: "fence", marker, name, from, lines: lines.slice(from, at), isWhole: at < lines.length }, at + 1];
}

function readMath(lines, at) {
  const end = DISPLAY_MATH[lines[at].trim().slice(0, 2)];
  const held = [lines[at++]];
  if (!held[0].trim().slice(2).includes(end)) {
    while (at < lines.length && lines[at].trim()) {
      held.push(lines[at++]);
      if (held.at(-1).includes(end)) break;
    }
  }
  return [{ kind: "math", text: held.join("\n") }, at];
}

function readQuote(lines, at, depth) {
  const from = at;
  const held = [];
  while (at < lines.length && lines[at].trim() && (QUOTE.test(lines[at]) || !begins(lines, at))) {
    held.push(lines[at++].replace(QUOTE, ""));
  }
  return [{ kind: "quote", from, blocks: parse(held, depth + 1) }, at];
}

function readTable({ head, align }, lines, at) {
  const from = at;
  const rows = [];
  while (at < lines.length && lines[at].includes("|") && lines[at].trim()) rows.push(cells(lines[at++]));
  return [{ kind: "table", head, align, rows, from }, at];
}

/** One that is very long is several, so that only what comes last may change. */
function readParagraph(lines, at, depth) {
  const held = [];
  let length = 0;
  do {
    // Lines of blocks within others keep their numbers.
    if (depth === 0) cutLine(lines, at);
    length += lines[at].length;
    held.push(lines[at++].trimStart());
  } while (length < LONGEST_PARAGRAPH && at < lines.length && lines[at].trim() && !begins(lines, at));
  return [{ kind: "paragraph", text: held.join("\n") }, at];
}

/** Make a line that is too long two, the second of which begins no other block. */
function cutLine(lines, at) {
  const line = lines[at];
  const most = LONGEST_PARAGRAPH + LONGEST_WORD;
  if (line.length <= most) return;
  let cut = LONGEST_PARAGRAPH;
  while (cut < most && !(line[cut - 1] === " " && LETTER.test(line[cut]))) cut += 1;
  lines.splice(at, 1, line.slice(0, cut), line.slice(cut));
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

/** Each item says for itself whether there is room about its text: then a later one changes none before it. */
function readList(lines, at, depth) {
  const [, , marker] = ITEM.exec(lines[at]);
  const items = [];
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[2].at(-1) !== marker.at(-1) || RULE.test(lines[at])) break;
    const begin = at;
    const indent = Math.min(found[0].length, found[1].length + found[2].length + 4);
    const held = [lines[at++].slice(found[0].length)];
    let isLoose = false;
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
    const next = nextText(lines, at);
    if (next > at && next < lines.length && ITEM.exec(lines[next])?.[2].at(-1) === marker.at(-1)) {
      isLoose = true;
      at = next;
    }
    items.push({ begin, isLoose, blocks: parse(held, depth + 1) });
  }
  const start = Number.parseInt(marker, 10);
  return [{ kind: "list", items, start: Number.isNaN(start) ? null : start }, at];
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
