// The views, by the address behind the #, and what stands above all of them.

import { Chat } from "./chat.js";
import { Connect } from "./connect.js";
import { h, icon, say } from "./dom.js";
import { Fleet } from "./fleet.js";
import { askForKey, showKeyButton } from "./key.js";

const main = document.getElementById("main");
const themeButton = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const MAKERS = { chat: () => new Chat(), fleet: () => new Fleet(), connect: () => new Connect() };
const TITLES = { chat: "Chat", fleet: "Fleet", connect: "Connect" };
const views = new Map();
let shown = null;

async function show() {
  const asked = location.hash.replace(/^#\/?/, "").split("/")[0];
  const name = asked in MAKERS ? asked : "chat";
  if (shown && views.get(shown) !== undefined) views.get(shown).pause?.();
  const isNew = !views.has(name);
  if (isNew) views.set(name, MAKERS[name]());
  const view = views.get(name);
  shown = name;
  document.title = `${TITLES[name]} · Pomona`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.className = `at-${name}`;
  main.replaceChildren(view.element);
  try {
    await (isNew ? view.start() : view.resume?.());
  } catch (error) {
    tell(error);
  }
}

/** What went wrong, above whatever is shown. */
function tell(error) {
  document.querySelector(".alert")?.remove();
  const close = h("button", { type: "button", class: "quiet icon", "aria-label": "Close", onclick: () => alert.remove() }, icon("close"));
  const alert = h("div", { class: "alert", role: "alert" }, h("span", {}, error.message), close);
  main.before(alert);
  say(error.message);
}

function theme() {
  return localStorage.getItem("pomona.theme") ?? (dark.matches ? "dark" : "light");
}

function showTheme() {
  document.documentElement.dataset.theme = theme();
  themeButton.replaceChildren(icon(theme() === "dark" ? "sun" : "moon"));
}

themeButton.addEventListener("click", () => {
  localStorage.setItem("pomona.theme", theme() === "dark" ? "light" : "dark");
  showTheme();
});
document.getElementById("key").addEventListener("click", () => {
  askForKey("Another key for this server.").then(() => location.reload(), () => {});
});
dark.addEventListener("change", showTheme);
addEventListener("hashchange", show);
addEventListener("unhandledrejection", ({ reason }) => tell(reason));
showTheme();
showKeyButton();
show();
