// The messages of a conversation, of which those are built that are near what is seen.

import { h } from "./dom.js";
import { MessageView } from "./message.js";

const STEP = 30;
const MOST = 3 * STEP;
const NEAR_PX = 80;
const AHEAD_PX = 400;

export class Log {
  /** `actions`: what the messages' buttons do. */
  constructor(actions) {
    this.actions = actions;
    this.element = h("div", { class: "log", tabindex: 0, role: "region", "aria-label": "Conversation", onscroll: () => this.scrolled() });
  }

  /** Build what is seen of a conversation anew, from its end. */
  show(conversation) {
    this.conversation = conversation;
    this.path = conversation.path;
    this.views = new Map();
    this.end = this.path.length;
    this.first = Math.max(0, this.end - STEP);
    this.element.replaceChildren(...this.build(this.first, this.end));
    if (!this.path.length) this.element.append(welcome());
    this.follows = true;
    this.followEnd();
  }

  /** Show what has come of a message since. */
  update(message) {
    this.views.get(message.id)?.update();
    this.followEnd();
  }

  build(from, to) {
    return this.path.slice(from, to).map((message) => {
      const view = new MessageView(message, this.conversation.siblings(message), this.actions);
      this.views.set(message.id, view);
      return view.element;
    });
  }

  drop(from, to) {
    for (const { id } of this.path.slice(from, to)) {
      this.views.get(id).element.remove();
      this.views.delete(id);
    }
  }

  followEnd() {
    if (this.follows) this.element.scrollTop = this.element.scrollHeight;
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    const below = scrollHeight - scrollTop - clientHeight;
    this.follows = this.end === this.path.length && below < NEAR_PX;
    if (scrollTop < AHEAD_PX && this.first > 0) this.showEarlier();
    else if (below < AHEAD_PX && this.end < this.path.length) this.showLater();
  }

  showEarlier() {
    const from = Math.max(0, this.first - STEP);
    const end = Math.min(this.end, from + MOST);
    this.keepPlaceOf(this.path[this.first], () => {
      this.element.prepend(...this.build(from, this.first));
      this.drop(end, this.end);
    });
    [this.first, this.end] = [from, end];
  }

  showLater() {
    const end = Math.min(this.path.length, this.end + STEP);
    const first = Math.max(this.first, end - MOST);
    this.keepPlaceOf(this.path[this.end - 1], () => {
      this.element.append(...this.build(this.end, end));
      this.drop(this.first, first);
    });
    [this.first, this.end] = [first, end];
  }

  /** `message` stays where it is seen, whatever `change` adds and takes away. */
  keepPlaceOf({ id }, change) {
    const { element } = this.views.get(id);
    const before = element.offsetTop;
    change();
    this.element.scrollTop += element.offsetTop - before;
  }
}

function welcome() {
  return h(
    "div",
    { class: "empty" },
    h("img", { src: "page/icon.svg", alt: "", width: 56, height: 56 }),
    h("h1", {}, "What would you like to know?"),
    h("p", { class: "soft" }, "Conversations stay in this browser."),
  );
}
