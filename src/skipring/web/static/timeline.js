/** Healing timeline: violations of each layer over time, and the scrubber for replay. */

import { byId, element, keyed, setAttribute, setText } from "./dom.js";
import { clock, count, seconds, verdictOf } from "./format.js";
import { colours } from "./theme.js";
import { healings, Tracks } from "./tracks.js";

const LAYERS = {
  L0: "database",
  L1: "labels",
  L2: "ring",
  L3: "shortcuts",
  L4: "leavers",
  LINK: "links",
  NODE: "processes",
  PUB: "content",
};
const SAMPLES_MAX = 600; // as many as the server keeps

export class Timeline {
  /** `onMoment` is called with a sample to replay, or null for the current scene. */
  constructor(onMoment) {
    this.onMoment = onMoment;
    this.samples = [];
    this.chosen = null;
    this.content = null;
    this.ahead = 0; // of the server's clock
    this.scrubber = byId("scrubber");
    this.tracks = new Tracks(byId("tracks"), Object.keys(LAYERS));
    this.#listen();
    this.repaint();
  }

  #listen() {
    const plot = this.scrubber.parentElement;
    this.scrubber.addEventListener("input", () => this.#choose(Number(this.scrubber.value)));
    plot.addEventListener("pointerdown", (event) => this.#onDown(plot, event));
    byId("live").addEventListener("click", () => this.goLive());
    new ResizeObserver(() => this.#draw()).observe(plot);
  }

  #onDown(plot, down) {
    if (!this.samples.length) return;
    const move = (event) => this.#choose(this.tracks.nearest(event.clientX, this.samples));
    plot.setPointerCapture(down.pointerId);
    plot.addEventListener("pointermove", move);
    const end = () => plot.removeEventListener("pointermove", move);
    plot.addEventListener("pointerup", end, { once: true });
    plot.addEventListener("pointercancel", end, { once: true });
    this.scrubber.focus({ preventScroll: true });
    move(down);
    down.preventDefault();
  }

  /** Set the names of the layers, as sent by the server. */
  name(meanings) {
    const rows = Object.entries(LAYERS);
    const key = ([layer]) => layer;
    const make = ([layer, name]) => element("li", { title: meanings[layer] ?? name }, name);
    keyed(byId("layers"), rows, { key, make });
    keyed(byId("counts"), rows, { key, make: () => element("li", { class: "number" }, "–") });
  }

  /** Read the colours of the theme. */
  repaint() {
    this.tracks.ink = colours("wrong", "right", "line", "faint", "accent", "ink", "wash");
    this.#draw();
  }

  /** Replace all samples up to scene `since` by those that the server kept. */
  load(samples, since) {
    this.samples = [...samples, ...this.samples.filter(({ number }) => number > since)];
    this.#refresh();
  }

  /** Add a new scene; the server keeps scenes that differ from the previous one. */
  add(scene) {
    const { number, time, wrong, members, legitimate } = scene;
    const content = contentOf(scene);
    this.ahead = time - Date.now();
    if (content !== this.content) this.samples.push({ number, time, wrong, members, legitimate });
    this.content = content;
    this.samples.splice(0, this.samples.length - SAMPLES_MAX);
    this.#refresh();
  }

  /** Advance the time axis while nothing changes. */
  tick() {
    if (this.samples.length) this.#draw();
  }

  /** Reset for another topic. */
  clear() {
    this.samples = [];
    this.content = this.chosen = null;
    this.#refresh();
  }

  /** Show the current scene. */
  goLive() {
    this.chosen = null;
    this.#refresh();
    this.onMoment(null);
  }

  #choose(place) {
    if (place >= this.samples.length - 1) return this.goLive();
    this.chosen = this.samples[place].number;
    this.#refresh();
    this.onMoment(this.samples[place]);
  }

  get #place() {
    const found = this.samples.findIndex(({ number }) => number === this.chosen);
    return found < 0 ? this.samples.length - 1 : found;
  }

  #refresh() {
    const sample = this.samples[this.#place];
    this.scrubber.disabled = this.samples.length < 2;
    this.scrubber.max = Math.max(0, this.samples.length - 1);
    this.scrubber.value = this.#place;
    setAttribute(this.scrubber, "data-number", this.chosen);
    setAttribute(byId("live"), "aria-pressed", this.chosen === null);
    if (sample) this.#tell(sample);
    this.#draw();
  }

  #tell(sample) {
    const when = this.chosen === null ? "now" : clock(sample.time);
    setAttribute(this.scrubber, "aria-valuetext", `${when}: ${verdictOf(sample)}`);
    const moment = this.chosen === null ? this.#summary() : `${when} · ${verdictOf(sample)}`;
    setText(byId("moment"), moment);
    for (const item of byId("counts").children) {
      const wrong = sample.wrong[item.dataset.key] ?? 0;
      setText(item, wrong ? count(wrong) : "✓");
      setAttribute(item, "data-state", wrong ? "wrong" : "right");
    }
  }

  #summary() {
    const done = healings(this.samples).filter(({ end }) => end !== null);
    if (!done.length) return "nothing to heal so far";
    const last = done.at(-1);
    const times = done.length === 1 ? "once" : `${done.length} times`;
    return `healed ${times}, last in ${seconds(last.end - last.start)}`;
  }

  #draw() {
    const chosen = this.chosen === null ? null : this.samples[this.#place];
    this.tracks.draw(this.samples, chosen, Date.now() + this.ahead);
  }
}

/** Return the visible content of a scene, without time and the supervisor's load. */
function contentOf(scene) {
  const supervisor = { ...scene.supervisor, ticks: 0, requests: 0 };
  return JSON.stringify({ ...scene, number: 0, time: 0, supervisor });
}
