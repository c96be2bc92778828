/** Drawing of the timeline: one row per layer, time from left to right. */

import { seconds } from "./format.js";

const HEAD = 18; // above the rows, for how long it took to heal
const FOOT = 16; // below them, for the time
const ROW = 16; // as high as the names beside them are in the style sheet
const GAP = 3;
const WINDOW_MIN_MS = 60_000;
const TICKS_MS = [5, 10, 15, 30, 60, 120, 300, 600].map((each) => each * 1000);

/** Times in which the ring was degraded; `end` is null while it still is. */
export function healings(samples) {
  const found = [];
  let open = null;
  for (const { time, legitimate } of samples) {
    if (!legitimate && open === null) found.push((open = { start: time, end: null }));
    if (legitimate && open !== null) {
      open.end = time;
      open = null;
    }
  }
  return found;
}

export class Tracks {
  constructor(canvas, layers) {
    this.canvas = canvas;
    this.layers = layers;
    this.pen = canvas.getContext("2d");
    this.ink = {};
  }

  /** Draw all samples up to now, with a mark at the chosen one. */
  draw(samples, chosen, now) {
    this.#fit();
    if (!samples.length) return;
    const end = Math.max(samples.at(-1).time, now);
    this.start = Math.min(samples[0].time, end - WINDOW_MIN_MS);
    this.end = end;
    this.#grid();
    const tallest = Math.max(1, ...samples.flatMap(({ wrong }) => Object.values(wrong)));
    this.layers.forEach((layer, row) => this.#row(layer, row, samples, tallest));
    for (const span of healings(samples)) this.#healing(span);
    this.#cursor(chosen?.time ?? end, chosen !== null);
  }

  #fit() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const density = devicePixelRatio;
    this.width = width;
    this.canvas.width = Math.round(width * density);
    this.canvas.height = Math.round(height * density);
    this.pen.setTransform(density, 0, 0, density, 0, 0);
    this.pen.font = `11px ${getComputedStyle(this.canvas).fontFamily}`;
  }

  #x(time) {
    return 6 + ((time - this.start) / (this.end - this.start)) * (this.width - 12);
  }

  /** Return the index of the sample nearest to a point of the window. */
  nearest(clientX, samples) {
    const x = clientX - this.canvas.getBoundingClientRect().left;
    const distances = samples.map(({ time }) => Math.abs(this.#x(time) - x));
    return distances.indexOf(Math.min(...distances));
  }

  #grid() {
    const span = this.end - this.start;
    const step = TICKS_MS.find((each) => span / each <= this.width / 80) ?? TICKS_MS.at(-1);
    const bottom = HEAD + this.layers.length * (ROW + GAP);
    this.pen.textAlign = "center";
    for (let ago = step; ago < span; ago += step) {
      const x = Math.round(this.#x(this.end - ago)) + 0.5;
      this.pen.fillStyle = this.ink.line;
      this.pen.fillRect(x - 0.5, HEAD, 1, bottom - HEAD);
      this.pen.fillStyle = this.ink.faint;
      if (x > 24) this.pen.fillText(`−${seconds(ago)}`, x, bottom + FOOT - 4);
    }
    this.pen.textAlign = "right";
    this.pen.fillText("now", this.width - 4, bottom + FOOT - 4);
  }

  #row(layer, row, samples, tallest) {
    const floor = HEAD + (row + 1) * (ROW + GAP) - GAP;
    samples.forEach(({ time, wrong }, place) => {
      const amount = wrong[layer] ?? 0;
      const x = this.#x(time);
      const width = Math.max(1, this.#x(samples[place + 1]?.time ?? this.end) - x);
      const height = amount ? 4 + (ROW - 4) * Math.sqrt(amount / tallest) : 2;
      this.pen.fillStyle = amount ? this.ink.wrong : this.ink.right;
      this.pen.fillRect(x, floor - height, width + 0.4, height);
    });
  }

  #healing({ start, end }) {
    const [left, right] = [this.#x(start), this.#x(end ?? this.end)];
    this.pen.fillStyle = this.ink.wrong;
    this.pen.fillRect(left, HEAD - 4, Math.max(2, right - left), 1.5);
    if (end === null) return;
    this.pen.fillStyle = this.ink.ink;
    this.pen.textAlign = right > this.width - 30 ? "right" : "center";
    this.pen.fillText(seconds(end - start), Math.max(16, (left + right) / 2), HEAD - 7);
  }

  #cursor(time, isPast) {
    const x = this.#x(time);
    const bottom = HEAD + this.layers.length * (ROW + GAP);
    this.pen.fillStyle = isPast ? this.ink.accent : this.ink.faint;
    this.pen.fillRect(x - 1, HEAD - 6, 2, bottom - HEAD + 6);
    this.pen.beginPath();
    this.pen.arc(x, HEAD - 6, isPast ? 5 : 3, 0, 7);
    this.pen.fill();
  }
}
