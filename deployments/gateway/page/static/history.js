// The list of conversations, the latest first.

import { button, h, icon } from "./dom.js";
import * as store from "./store.js";

const AT_ONCE = 60;

export class History {
  constructor(chat) {
    this.chat = chat;
    this.list = h("ul", { class: "list" });
    this.more = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.showMore() }, "Earlier ones");
    this.element = h(
      "aside",
      { class: "history", id: "history", "aria-label": "Conversations" },
      h("button", { type: "button", class: "new", onclick: () => this.chosen(() => chat.new()) }, icon("plus"), "New chat"),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Earlier conversations" }, this.list, this.more),
    );
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && this.toggle(false));
  }

  /** On a narrow screen it lies over the messages. */
  toggle(isOpen = !this.element.classList.contains("open")) {
    this.element.classList.toggle("open", isOpen);
    if (isOpen) this.element.querySelector("button").focus();
  }

  chosen(act) {
    this.toggle(false);
    return act();
  }

  async refresh() {
    const found = await store.conversations(AT_ONCE);
    this.list.replaceChildren(...found.map((one) => this.item(one)));
    this.last = found.at(-1)?.at;
    this.more.hidden = found.length < AT_ONCE;
    this.mark(this.chat.conversation.id);
  }

  async showMore() {
    const found = await store.conversations(AT_ONCE, this.last);
    this.list.append(...found.map((one) => this.item(one)));
    this.last = found.at(-1)?.at;
    this.more.hidden = found.length < AT_ONCE;
  }

  item({ id, title }) {
    const name = title || "Untitled";
    return h(
      "li",
      { data: { id } },
      h("button", { type: "button", class: "title", onclick: () => this.chosen(() => this.chat.open(id)) }, name),
      button(`Delete: ${name}`, "bin", () => this.remove(id, name)),
    );
  }

  async remove(id, name) {
    if (!confirm(`Delete “${name}”?`)) return;
    if (this.chat.conversation.id === id) this.chat.new();
    await store.remove(id);
    await this.refresh();
  }

  mark(id) {
    for (const item of this.list.children) {
      item.querySelector("button").setAttribute("aria-current", String(item.dataset.id === id));
    }
  }
}
