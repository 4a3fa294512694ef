// The chat: conversations beside it, messages, and where one is written.

import { answer } from "./answer.js";
import { models } from "./api.js";
import { Conversation } from "./conversation.js";
import { button, h, icon, say } from "./dom.js";
import { History } from "./history.js";
import { Log } from "./log.js";
import { isSend } from "./message.js";
import { change, openSettings, settings } from "./settings.js";

const SAVES_EVERY_MS = 1000;

export class Chat {
  constructor() {
    this.conversation = Conversation.new();
    this.running = null;
    this.loading = null;
    this.actions = {
      edit: (message, text) => this.edit(message, text),
      again: (message) => this.again(message),
      show: (id) => this.showBranch(id),
    };
    this.build();
    this.history = new History(this);
    this.element = h("div", { class: "chat" }, this.history.element, this.talk);
  }

  build() {
    this.log = new Log(this.actions);
    this.field = h("textarea", {
      rows: 1,
      id: "message",
      placeholder: "Ask anything",
      "aria-label": "Message",
      oninput: () => this.grow(),
      onkeydown: (event) => {
        if (isSend(event)) (event.preventDefault(), this.submit());
      },
    });
    this.model = h("select", { id: "model", "aria-label": "Model", onchange: () => change({ model: this.model.value }) });
    this.sendButton = h("button", { class: "main round", "aria-label": "Send" });
    this.bar = h("div", { class: "prefill", hidden: true });
    this.form = h(
      "form",
      { class: "composer", onsubmit: (event) => (event.preventDefault(), this.running ? this.stop() : this.submit()) },
      this.bar,
      this.field,
      h(
        "div",
        { class: "row" },
        button("Conversations", "menu", () => this.history.toggle(), { class: "quiet icon narrow", "aria-controls": "history" }),
        this.model,
        button("Settings", "sliders", openSettings),
        h("span", { class: "grow" }),
        this.sendButton,
      ),
    );
    this.talk = h("section", { class: "talk", "aria-label": "Chat", onkeydown: (event) => event.key === "Escape" && this.stop() }, this.log.element, this.form);
    this.showButton();
  }

  async start() {
    this.show();
    await Promise.all([this.history.refresh(), this.loadModels()]);
    const last = settings().conversation;
    if (last && this.conversation.about.leaf === null) await this.open(last);
  }

  /** One request at a time; what failed may be asked for again. */
  loadModels() {
    this.loading ??= this.askModels().finally(() => (this.loading = null));
    return this.loading;
  }

  async askModels() {
    const served = await models();
    const wanted = settings().model;
    this.model.replaceChildren(
      ...served.map(({ id, maxModelLen }) =>
        h("option", { value: id, selected: id === wanted, title: `${maxModelLen} tokens` }, id),
      ),
    );
  }

  async open(id) {
    this.stop();
    const found = await Conversation.load(id);
    if (!found) return;
    this.conversation = found;
    change({ conversation: id });
    this.show();
    this.history.mark(id);
  }

  new() {
    this.stop();
    this.conversation = Conversation.new();
    change({ conversation: null });
    this.show();
    this.history.mark(null);
    this.field.focus();
  }

  show() {
    this.log.show(this.conversation);
  }

  grow() {
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, 240)}px`;
  }

  showButton() {
    this.sendButton.replaceChildren(icon(this.running ? "stop" : "send"));
    this.sendButton.setAttribute("aria-label", this.running ? "Stop" : "Send");
    this.sendButton.title = this.running ? "Stop (Esc)" : "Send (Enter)";
  }

  async submit() {
    const text = this.field.value;
    if (!text.trim() || this.running) return;
    this.field.value = "";
    this.grow();
    await this.ask(this.conversation.about.leaf, text);
  }

  /** A question behind the message `parent`, and its answer. */
  async ask(parent, text) {
    const question = await this.conversation.add(parent, "user", { text });
    change({ conversation: this.conversation.id });
    await this.answer(question);
  }

  edit(message, text) {
    this.stop();
    return this.ask(message.parent, text);
  }

  again(message) {
    this.stop();
    return this.answer(this.conversation.messages.get(message.parent));
  }

  async showBranch(id) {
    this.stop();
    await this.conversation.show(id);
    this.show();
  }

  stop() {
    this.running?.abort(STOPPED);
  }

  async answer(question) {
    const { conversation } = this;
    const running = new AbortController();
    this.running = running;
    const message = await conversation.add(question.id, "assistant", { text: "", isRunning: true });
    this.show();
    this.showButton();
    this.history.refresh();
    const painter = new Painter(() => this.log.update(message));
    const saving = setInterval(() => conversation.save(message), SAVES_EVERY_MS);
    try {
      if (!this.model.value) await this.loadModels();
      message.model = this.model.value;
      await answer(message, conversation.pathTo(question), {
        signal: running.signal,
        progress: (part) => this.progress(part),
        grown: () => painter.wanted(),
      });
      say("The answer is complete.");
    } catch (error) {
      if (running.signal.aborted) message.finish = "stopped";
      else {
        message.error = error.message;
        say(error.message);
      }
    } finally {
      clearInterval(saving);
      message.isRunning = false;
      if (this.running === running) this.running = null;
      this.progress(1);
      this.showButton();
      // An answer that is shown as whole is there after a reload.
      await conversation.save(message).finally(() => painter.now());
    }
  }

  progress(part) {
    this.bar.hidden = part >= 1;
    this.bar.style.setProperty("--part", part);
  }
}

const STOPPED = new DOMException("Stopped", "AbortError");

/** Paints once a frame at most. */
class Painter {
  constructor(paint) {
    this.paint = paint;
    this.asked = 0;
  }

  wanted() {
    this.asked ||= requestAnimationFrame(() => this.now());
  }

  now() {
    cancelAnimationFrame(this.asked);
    this.asked = 0;
    this.paint();
  }
}
