// Colours for code, a line at a time: what a line begins in (a comment, a string) is handed on.

import { h } from "./dom.js";

const C_LIKE =
  "abstract as async await bool boolean break case catch char class const constexpr continue crate default delete do double else enum export extends extern false final finally float fn for from func function go if impl implements import in instanceof int interface let long match mod mut namespace new nil null nullptr of override package private protected pub public return self short signed sizeof static string struct super switch template this throw throws trait true try type typedef typeof undefined union unsafe unsigned use using var virtual void volatile where while yield";
const PYTHON =
  "False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return self try while with yield begin do end module puts require then unless elsif nil true false";
const SHELL =
  "if then else elif fi for in do done while until case esac function return local export set unset cd echo exit sudo source alias trap read eval exec true false null yes no on off";
const SQL =
  "select from where insert into values update set delete create table drop alter index view join left right inner outer full on group by order having limit offset union all distinct as and or not null is in exists between like case when then else end primary key foreign references default cascade with";

const words = (text) => new Set(text.split(" "));
const LANGUAGES = [
  [/^(py|python|rb|ruby|pyi|nim)$/, { words: words(PYTHON), line: "#", triple: true }],
  [/^(sh|bash|zsh|shell|console|yaml|yml|toml|ini|conf|make|makefile|dockerfile|r|perl|pl|elixir|jinja)$/, { words: words(SHELL), line: "#" }],
  [/^(sql|postgres|mysql|sqlite)$/, { words: words(SQL), line: "--", block: ["/*", "*/"], folds: true }],
  [/^(lua|haskell|hs|ada)$/, { words: words(`${PYTHON} local function end then where let of data`), line: "--" }],
  [/^(html|xml|svg|vue|markdown|md)$/, { words: new Set(), block: ["<!--", "-->"], tags: true }],
  [/^(json|jsonc|json5)$/, { words: words("true false null"), line: "//" }],
  [/^(diff|patch)$/, { diff: true }],
  [/^(text|txt|plain|plaintext|output|log|)$/, null],
];
const OTHERS = { words: words(C_LIKE), line: "//", block: ["/*", "*/"], templates: true };
const LONGEST_LINE = 4000;

export function language(name) {
  const known = LANGUAGES.find(([pattern]) => pattern.test(name.toLowerCase()));
  return known ? known[1] : OTHERS;
}

/** The nodes of a line, and what the next one begins in: null, or what would end it. */
export function highlightLine(line, rules, state = null) {
  if (!rules || line.length > LONGEST_LINE) return [[line], null];
  if (rules.diff) return [[diffLine(line)], null];
  const made = [];
  let plain = "";
  let at = 0;
  const push = (kind, to) => {
    if (plain) made.push(plain);
    plain = "";
    made.push(h("span", { class: `hl-${kind}` }, line.slice(at, to)));
    at = to;
  };
  // The end of what began before `from`; true once it has come.
  const held = (kind, end, from) => {
    const found = endOf(line, end, from);
    push(kind, found < 0 ? line.length : found + end.length);
    return found >= 0;
  };
  if (state !== null && !held(state.kind, state.end, 0)) return [made, state];
  while (at < line.length) {
    const rest = line[at];
    if (rules.line && line.startsWith(rules.line, at) && (rules.line !== "#" || at === 0 || /[\s;]/.test(line[at - 1]))) {
      push("c", line.length);
    } else if (rules.block && line.startsWith(rules.block[0], at)) {
      if (!held("c", rules.block[1], at + rules.block[0].length)) return [made, { kind: "c", end: rules.block[1] }];
    } else if (rules.triple && (line.startsWith('"""', at) || line.startsWith("'''", at))) {
      const end = line.slice(at, at + 3);
      if (!held("s", end, at + 3)) return [made, { kind: "s", end }];
    } else if (rules.templates && rest === "`") {
      if (!held("s", "`", at + 1)) return [made, { kind: "s", end: "`" }];
    } else if (rest === '"' || (rest === "'" && !/\w/.test(line[at - 1] ?? ""))) {
      const end = endOf(line, rest, at + 1);
      if (end < 0) plain += line[at++];
      else push("s", end + 1);
    } else if (/\d/.test(rest) && !/\w/.test(line[at - 1] ?? "")) {
      push("n", match(NUMBER, line, at));
    } else if (/[A-Za-z_]/.test(rest)) {
      const end = match(NAME, line, at);
      const name = line.slice(at, end);
      if (rules.words.has(rules.folds ? name.toLowerCase() : name)) push("k", end);
      else if (line[end] === "(") push("f", end);
      else {
        plain += name;
        at = end;
      }
    } else if (rules.tags && rest === "<" && /[a-zA-Z/!?]/.test(line[at + 1] ?? "")) {
      push("k", match(TAG, line, at));
    } else plain += line[at++];
  }
  if (plain) made.push(plain);
  return [made, null];
}

const NUMBER = /[\d._]+(?:[eE][+-]?\d+)?[a-zA-Z]*|\d/y;
const NAME = /[A-Za-z_][\w$-]*/y;
const TAG = /<[/!?]?[\w:-]*/y;

function match(pattern, line, at) {
  pattern.lastIndex = at;
  return at + pattern.exec(line)[0].length;
}

function endOf(line, end, from) {
  for (let at = from; at < line.length; at += 1) {
    if (line[at] === "\\" && end.length < 2) at += 1;
    else if (line.startsWith(end, at)) return at;
  }
  return -1;
}

function diffLine(line) {
  const kind = { "+": "s", "-": "d", "@": "c" }[line[0]];
  return kind ? h("span", { class: `hl-${kind}` }, line) : line;
}
