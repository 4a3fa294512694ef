// A conversation is a tree: another answer, or another question, is a branch beside the first.

import * as store from "./store.js";

export class Conversation {
  constructor(about, messages = []) {
    this.about = about;
    this.messages = new Map();
    // By parent, in the order in which they were made.
    this.children = new Map();
    messages.sort((one, other) => one.at - other.at).forEach((one) => this.insert(one));
  }

  static new() {
    return new Conversation({ id: newId(), title: "", at: Date.now(), leaf: null });
  }

  static async load(id) {
    const about = await store.conversation(id);
    if (!about) return null;
    const messages = await store.messagesOf(id);
    // Nobody makes an answer any more that was on its way when the page was closed.
    for (const one of messages) if (one.isRunning) Object.assign(one, { isRunning: false, finish: "stopped" });
    return new Conversation(about, messages);
  }

  get id() {
    return this.about.id;
  }

  insert(message) {
    this.messages.set(message.id, message);
    const beside = this.children.get(message.parent) ?? [];
    beside.push(message.id);
    this.children.set(message.parent, beside);
  }

  /** From the first message to the one that is shown last. */
  get path() {
    const path = [];
    for (let id = this.about.leaf; id !== null; id = this.messages.get(id).parent) {
      path.push(this.messages.get(id));
    }
    return path.reverse();
  }

  pathTo(message) {
    const path = this.path;
    return path.slice(0, path.indexOf(message) + 1);
  }

  siblings(message) {
    return this.children.get(message.parent);
  }

  /** Show `message`, and of what follows it the latest. */
  show(id) {
    let leaf = id;
    for (let next; (next = this.children.get(leaf)?.at(-1)); ) leaf = next;
    this.about.leaf = leaf;
    return this.saveAbout();
  }

  async add(parent, role, more) {
    const at = Math.max(Date.now(), (this.lastAt ?? 0) + 1);
    this.lastAt = at;
    const message = { id: newId(), conversation: this.id, parent, role, at, ...more };
    this.insert(message);
    this.about.leaf = message.id;
    this.about.at = at;
    if (!this.about.title && role === "user") this.about.title = message.text.trim().slice(0, 80);
    await Promise.all([this.save(message), this.saveAbout()]);
    return message;
  }

  save(message) {
    return store.put("messages", message);
  }

  saveAbout() {
    return store.put("conversations", this.about);
  }
}

/** `crypto.randomUUID` is not for pages that come by plain HTTP. */
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join("");
}
