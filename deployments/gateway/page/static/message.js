// One message as it is shown. What a model wrote goes in as text, through `markdown.js`.

import { button, copyButton, count, h } from "./dom.js";
import { MarkdownStream } from "./markdown.js";
import { setText } from "./meter.js";
import { TextStream } from "./text.js";

/** `actions`: what its buttons do: edit, again, show (a sibling). */
export class MessageView {
  constructor(message, siblings, actions) {
    this.message = message;
    this.shown = { text: 0, thinking: 0 };
    this.element = h("article", { class: `message ${message.role}`, data: { id: message.id } });
    this.element.append(h("h2", { class: "unseen" }, message.role === "user" ? "You" : "Answer"));
    if (message.role === "user") this.buildQuestion(siblings, actions);
    else this.buildAnswer(siblings, actions);
  }

  buildQuestion(siblings, actions) {
    this.body = h("div", { class: "bubble" }, this.message.text);
    const edit = button("Edit", "edit", () => this.edit(actions));
    this.element.append(this.body, h("div", { class: "under" }, this.branches(siblings, actions), edit, copyButton(() => this.message.text)));
  }

  edit(actions) {
    const field = h("textarea", { "aria-label": "Edit your message", rows: 3, value: this.message.text });
    const close = () => form.replaceWith(this.body);
    const send = () => {
      if (field.value.trim()) actions.edit(this.message, field.value);
    };
    const form = h(
      "form",
      {
        class: "edit",
        onsubmit: (event) => (event.preventDefault(), send()),
        onkeydown: (event) => {
          if (event.key === "Escape") close();
          if (isSend(event)) (event.preventDefault(), send());
        },
      },
      field,
      h("div", { class: "row end" }, h("button", { type: "button", class: "quiet", onclick: close }, "Cancel"), h("button", { class: "main" }, "Send")),
    );
    this.body.replaceWith(form);
    field.focus();
  }

  buildAnswer(siblings, actions) {
    this.thought = h("div", { class: "thought" });
    this.thoughts = new TextStream(this.thought);
    this.summary = h("summary", {}, "Thinking");
    this.thinking = h("details", { class: "thinking", hidden: true }, this.summary, this.thought);
    this.body = h("div", { class: "prose" });
    this.stream = new MarkdownStream(this.body);
    this.calls = h("div", { class: "calls" });
    this.callViews = [];
    this.note = h("p", { class: "note", hidden: true });
    this.meta = h("p", { class: "meta" });
    this.under = h(
      "div",
      { class: "under" },
      this.branches(siblings, actions),
      button("Another answer", "again", () => actions.again(this.message)),
      copyButton(() => this.message.text, "Copy answer"),
      this.meta,
    );
    this.element.append(this.thinking, this.body, this.calls, this.note, this.under);
    this.update();
  }

  branches(siblings, actions) {
    if (siblings.length < 2) return null;
    const at = siblings.indexOf(this.message.id);
    const to = (step) => actions.show(siblings[at + step]);
    return h(
      "span",
      { class: "branches" },
      button("Previous branch", "left", () => to(-1), { disabled: at === 0 }),
      h("span", {}, `${at + 1}/${siblings.length}`),
      button("Next branch", "right", () => to(1), { disabled: at === siblings.length - 1 }),
    );
  }

  /** Show what has come since. */
  update() {
    const { message, shown } = this;
    const thinking = message.thinking ?? "";
    if (thinking.length > shown.thinking) {
      this.thoughts.append(thinking.slice(shown.thinking));
      this.thinking.hidden = false;
      shown.thinking = thinking.length;
    }
    if (message.text.length > shown.text) {
      this.stream.append(message.text.slice(shown.text));
      shown.text = message.text.length;
    }
    const isThinking = message.isRunning && !message.text;
    this.summary.textContent = isThinking ? "Thinking…" : thoughtFor(message);
    (message.calls ?? []).forEach((call, at) => this.showCall(call, at));
    this.element.classList.toggle("running", Boolean(message.isRunning));
    this.element.setAttribute("aria-busy", String(Boolean(message.isRunning)));
    this.under.classList.toggle("off", Boolean(message.isRunning));
    this.note.hidden = !message.error;
    this.note.textContent = message.error ?? "";
    this.meta.textContent = metaLine(message).join(" · ");
  }

  showCall(call, at) {
    if (!this.callViews[at]) {
      this.callViews[at] = new CallView();
      this.calls.append(this.callViews[at].element);
    }
    this.callViews[at].show(call);
  }
}

export function isSend(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing;
}

function thoughtFor({ stats }) {
  return stats?.thoughtSeconds ? `Thought for ${seconds(stats.thoughtSeconds)}` : "Thoughts";
}

class CallView {
  constructor() {
    this.name = h("code");
    this.arguments = document.createTextNode("");
    const held = h("pre", { tabindex: 0 }, h("code", {}, this.arguments));
    this.element = h("details", { class: "call" }, h("summary", {}, "Calls ", this.name), held);
  }

  show(call) {
    setText(this.name, call.name || "a tool");
    this.arguments.appendData(call.arguments.slice(this.arguments.length));
  }
}

/** Under each answer: what it took, and who gave it. */
export function metaLine({ stats, served = [], finish, isRunning }) {
  if (isRunning || !stats) return [];
  const told = [];
  if (stats.promptTokens !== undefined) {
    const cached = stats.cachedTokens ? ` (${count(stats.cachedTokens)} cached)` : "";
    told.push(`${count(stats.promptTokens)} prompt tokens${cached}`);
  }
  if (stats.firstSeconds !== undefined) told.push(`first token in ${seconds(stats.firstSeconds)}`);
  if (stats.tokens !== undefined) told.push(`${count(stats.tokens)} tokens`);
  if (stats.rate) told.push(`${stats.rate.toFixed(stats.rate < 10 ? 1 : 0)} tokens/s`);
  if (served.length) told.push(served[0].name);
  for (let at = 1; at < served.length; at += 1) {
    told.push(`moved from ${served[at - 1].name} to ${served[at].name} at token ${served[at].tokens}`);
  }
  if (finish === "length") told.push("cut at its limit");
  if (finish === "stopped") told.push("stopped");
  return told;
}

function seconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`;
}
