/** Message list, and the input line below it. */

import { post } from "./api.js";
import { byId, element, setAttribute, setText } from "./dom.js";
import { clock, contentOf } from "./format.js";

const SHOWN_MAX = 200; // as many as the server keeps
const STEPS = { ArrowDown: 1, ArrowUp: -1 };

export class Messages {
  /** `topic()` is the topic to publish in; `onChoose` is called with the chosen message. */
  constructor({ topic, onChoose }) {
    this.topic = topic;
    this.onChoose = onChoose;
    this.log = byId("message-log");
    this.known = new Map();
    this.chosen = null;
    this.#listen();
    this.clear();
  }

  #listen() {
    this.log.addEventListener("click", (event) => this.#onChoice(event));
    this.log.addEventListener("keydown", (event) => this.#onKey(event));
    byId("publish-send").addEventListener("click", () => this.#publish());
    for (const id of ["publish-text", "publish-key"]) {
      byId(id).addEventListener("keydown", (event) => {
        if (event.key === "Enter" && !event.isComposing) this.#publish();
      });
    }
  }

  // -- reading --------------------------------------------------------------------------------

  /** Reset for another topic. */
  clear() {
    this.known.clear();
    this.log.replaceChildren(element("p", { class: "empty" }, "No publications yet."));
    setText(byId("publish-outcome"), "\u00a0");
  }

  /** Append new messages. */
  add(messages) {
    const fresh = messages.filter(({ id }) => !this.known.has(id));
    if (!fresh.length) return;
    const isAtEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
    this.log.querySelector(".empty")?.remove();
    for (const message of fresh) {
      this.known.set(message.id, message);
      this.log.append(line(message));
    }
    while (this.log.childElementCount > SHOWN_MAX) this.#dropOldest();
    if (!this.log.querySelector("[tabindex='0']")) this.log.lastElementChild.tabIndex = 0;
    if (isAtEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  #dropOldest() {
    const oldest = this.log.firstElementChild;
    this.known.delete(oldest.dataset.id);
    oldest.remove();
  }

  /** Mark the message whose journey is shown; null for none. */
  mark(id) {
    this.chosen = id;
    for (const item of this.log.querySelectorAll("[data-id]")) {
      setAttribute(item, "aria-selected", item.dataset.id === id);
    }
  }

  #onChoice(event) {
    const item = event.target.closest("[data-id]");
    if (!item) return;
    this.#rove(item);
    this.onChoose(this.known.get(item.dataset.id));
  }

  #onKey(event) {
    const item = event.target.closest("[data-id]");
    const last = this.log.querySelector("[tabindex='0']");
    if (event.key === "Enter" || event.key === " ") this.#onChoice(event);
    else if (event.key in STEPS && item) this.#walk(item, STEPS[event.key]);
    else if (event.key in STEPS && last) this.#rove(last); // from the log itself
    else return;
    event.preventDefault();
  }

  #walk(item, step) {
    const next = step > 0 ? item.nextElementSibling : item.previousElementSibling;
    if (next) this.#rove(next);
  }

  #rove(item) {
    for (const each of this.log.querySelectorAll("[tabindex='0']")) each.tabIndex = -1;
    item.tabIndex = 0;
    item.focus();
  }

  // -- publishing -----------------------------------------------------------------------------

  async #publish() {
    const [text, key] = [byId("publish-text"), byId("publish-key")];
    if (!text.value) return this.#tell("wrong", "Type a text first.");
    const button = byId("publish-send");
    button.disabled = true;
    try {
      const body = { text: text.value, key: key.value || null };
      const { publisher, seq } = await post("publish", { topic: this.topic() }, body);
      text.value = "";
      this.#tell("right", `Stored by a member as ${publisher} #${seq}.`);
    } catch (error) {
      this.#tell("wrong", error.message);
    }
    button.disabled = false;
    text.focus();
  }

  #tell(state, text) {
    setAttribute(byId("publish-outcome"), "data-state", state);
    setText(byId("publish-outcome"), text);
  }
}

function line(message) {
  const { id, publisher, seq, time, key } = message;
  return element(
    "div",
    { role: "option", class: "message", "data-id": id, tabindex: "-1", "aria-selected": "false" },
    element("span", { class: "when number" }, clock(time)),
    element("span", { class: "who", title: publisher }, publisher),
    element("span", { class: "faint number seq" }, `#${seq}`),
    element("span", { class: message.text === null ? "what faint" : "what" }, contentOf(message)),
    ...(key === null ? [] : [element("span", { class: "tag", title: "key" }, key)]),
  );
}
