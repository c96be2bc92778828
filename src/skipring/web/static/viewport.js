/** Zoom and pan of the stage, by buttons, keys, Ctrl and wheel, and by dragging. */

import { byId } from "./dom.js";

const CLOSEST = 12;
const STEP = 1.5;

export class Viewport {
  /** `pivot()` is the spot to zoom at; `onChange` is called when the visible part changes. */
  constructor(stage, { pivot, onChange }) {
    this.stage = stage;
    this.pivot = pivot;
    this.onChange = onChange;
    this.scale = 1;
    this.x = 0;
    this.y = 0;
    this.#listen();
  }

  #listen() {
    byId("zoom-in").addEventListener("click", () => this.zoom(STEP));
    byId("zoom-out").addEventListener("click", () => this.zoom(1 / STEP));
    byId("zoom-fit").addEventListener("click", () => this.fit());
    this.stage.addEventListener("wheel", (event) => this.#onWheel(event), { passive: false });
    this.stage.addEventListener("pointerdown", (event) => this.#onDown(event));
  }

  #onWheel(event) {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls, as everywhere
    event.preventDefault();
    const box = this.stage.getBoundingClientRect();
    const point = { x: event.clientX - box.left, y: event.clientY - box.top };
    this.zoom(Math.exp(-event.deltaY / 300), point);
  }

  #onDown(down) {
    if (this.scale === 1 || down.button !== 0 || down.target.closest(".node, button")) return;
    const start = { x: this.x - down.clientX, y: this.y - down.clientY };
    const move = (event) => this.#set(this.scale, start.x + event.clientX, start.y + event.clientY);
    const end = () => this.stage.removeEventListener("pointermove", move);
    this.stage.setPointerCapture(down.pointerId);
    this.stage.addEventListener("pointermove", move);
    this.stage.addEventListener("pointerup", end, { once: true });
    this.stage.addEventListener("pointercancel", end, { once: true });
  }

  /** Zoom by a factor around a point of the stage, by default the pivot. */
  zoom(factor, point = this.#seen(this.pivot())) {
    const scale = Math.min(CLOSEST, Math.max(1, this.scale * factor));
    const gain = scale / this.scale;
    this.#set(scale, point.x - (point.x - this.x) * gain, point.y - (point.y - this.y) * gain);
  }

  /** Show the whole ring. */
  fit() {
    this.#set(1, 0, 0);
  }

  /** Scroll a spot into view if necessary. */
  reveal({ x, y }) {
    const { clientWidth: width, clientHeight: height } = this.stage;
    const seen = this.#seen({ x, y });
    const isSeen = seen.x > 0 && seen.y > 0 && seen.x < width && seen.y < height;
    if (!isSeen) this.#set(this.scale, width / 2 - x * this.scale, height / 2 - y * this.scale);
  }

  #seen({ x, y }) {
    return { x: x * this.scale + this.x, y: y * this.scale + this.y };
  }

  #set(scale, x, y) {
    const { clientWidth: width, clientHeight: height } = this.stage;
    this.scale = scale;
    this.x = Math.min(0, Math.max(width - width * scale, x));
    this.y = Math.min(0, Math.max(height - height * scale, y));
    this.stage.dataset.zoomed = scale > 1;
    this.onChange(this);
  }
}
