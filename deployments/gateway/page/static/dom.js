// Building nodes. Text goes in as text: nothing here reads markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with properties: `class`, `on…` listeners, `data`, and attributes; false and null are left out. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "class") element.setAttribute("class", value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

/** An icon of 20 by 20, drawn by strokes. */
export function icon(name) {
  return svg(
    "svg",
    { viewBox: "0 0 20 20", width: 18, height: 18, "aria-hidden": "true", class: "stroke" },
    svg("path", { d: ICONS[name] }),
  );
}

const ICONS = {
  plus: "M10 4v12M4 10h12",
  send: "M10 16V4M5 9l5-5 5 5",
  stop: "M6 6h8v8H6z",
  copy: "M7 7h9v9H7zM13 7V4H4v9h3",
  check: "M4 10.500l4 4 8-9",
  again: "M15.500 8A6 6 0 1 0 16 11M16 4v4h-4",
  edit: "M4 16l.8-3.500L13 4.200l2.800 2.800-8.300 8.300z",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  bin: "M4 6h12M8 6V4h4v2M6 6l.7 10h6.600L14 6",
  menu: "M3 6h14M3 10h14M3 14h14",
  sliders: "M3 6h8M15 6h2M3 14h2M9 14h8M13 4v4M7 12v4",
  sun: "M10 6.500a3.500 3.500 0 1 0 0 7 3.500 3.500 0 0 0 0-7M10 2v1.500M10 16.500V18M2 10h1.500M16.500 10H18M4.500 4.500l1 1M14.500 14.500l1 1M4.500 15.500l1-1M14.500 5.500l1-1",
  moon: "M16 11.500A6.500 6.500 0 0 1 8.500 4 6.500 6.500 0 1 0 16 11.500z",
  close: "M5 5l10 10M15 5L5 15",
};

export function button(label, name, onclick, more = {}) {
  return h("button", { type: "button", class: "quiet icon", "aria-label": label, title: label, onclick, ...more }, icon(name));
}

async function copy(text) {
  // By plain HTTP from another machine there is no clipboard but by the old way.
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const before = document.activeElement;
  const field = h("textarea", { class: "unseen", value: text });
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  before?.focus();
  if (!isCopied) throw new Error("The browser did not let it be copied.");
}

/** A button that copies what `text` gives, and shows for a moment that it did. */
export function copyButton(text, label = "Copy") {
  const made = button(label, "copy", async () => {
    await copy(text());
    say("Copied");
    made.replaceChildren(icon("check"));
    setTimeout(() => made.replaceChildren(icon("copy")), 1200);
  });
  return made;
}

/** For screen readers. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let unit = 0;
  while (bytes >= 1024 && unit < UNITS.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${bytes >= 100 || unit === 0 ? bytes.toFixed(0) : bytes.toFixed(1)} ${UNITS[unit]}`;
}

/** The beginning of a digest. */
export function short(digest) {
  return digest.slice(0, 8);
}

/** 1234567 as 1.23M. */
export function count(number) {
  if (number < 10000) return String(Math.round(number));
  if (number < 1e6) return `${(number / 1e3).toFixed(number < 1e5 ? 1 : 0)}k`;
  return `${(number / 1e6).toFixed(number < 1e7 ? 2 : 1)}M`;
}
