/** Event stream of one topic; it reconnects by itself. */

import { whyRefused } from "./api.js";

const KINDS = ["scene", "pulses", "messages", "overview", "trouble"];
const AGAIN_MS = 3000; // The browser gives up for good when it is refused; then we try again.

export class Stream {
  /** `handlers` has a function for each kind of event; `state` for open, lost, refused (why). */
  constructor(handlers) {
    this.handlers = handlers;
    this.source = null;
    this.timer = null;
  }

  /** Follow one topic; null for the overview of all topics. */
  follow(topic) {
    this.close();
    const query = topic === null ? "" : `?${new URLSearchParams({ topic })}`;
    const source = new EventSource(`/api/events${query}`);
    this.source = source;
    source.onopen = () => this.handlers.state("open");
    source.onerror = () => this.#onLost(source, topic);
    for (const kind of KINDS) {
      source.addEventListener(kind, (event) => this.handlers[kind](JSON.parse(event.data)));
    }
  }

  /** Stop following. */
  close() {
    clearTimeout(this.timer);
    this.source?.close();
  }

  async #onLost(source, topic) {
    const isOver = source.readyState === EventSource.CLOSED;
    if (isOver) this.timer = setTimeout(() => this.follow(topic), AGAIN_MS);
    const why = isOver ? await whyRefused(source.url) : null;
    if (source === this.source) this.handlers.state(why === null ? "lost" : "refused", why);
  }
}
