/** Canvas for many moving nodes: hundreds of moving SVG elements would stutter. */

import { byId } from "./dom.js";
import { tints } from "./theme.js";

const CROWD = 100; // Measured: with fewer nodes the SVG itself moves smoothly.

/** Return true if this number of nodes should move on the canvas. */
export const isCrowd = (count) => count > CROWD;

export class Glide {
  constructor() {
    this.canvas = byId("glide");
    this.pen = this.canvas.getContext("2d");
  }

  /** Set up for the levels of a scene and the colours of the theme. */
  prepare(levels) {
    this.levels = levels;
    this.tints = tints(levels);
    this.canvas.width = Math.round(this.canvas.clientWidth * devicePixelRatio);
    this.canvas.height = Math.round(this.canvas.clientHeight * devicePixelRatio);
  }

  /** Draw lines and nodes at their current spots. */
  draw(lines, nodes, spots, { scale, x, y }) {
    const density = devicePixelRatio;
    this.pen.setTransform(1, 0, 0, 1, 0, 0);
    this.pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.pen.setTransform(density * scale, 0, 0, density * scale, density * x, density * y);
    for (const [colour, items] of this.#byColour([...lines.items.values()])) {
      this.#strokes(colour, items, 1 / scale);
    }
    for (const [name, { radius, tint }] of nodes.items) this.#disc(spots.get(name), radius, tint);
  }

  /** Show nothing. */
  clear() {
    this.canvas.width = this.canvas.width;
  }

  #byColour(items) {
    const groups = new Map();
    for (const item of items) {
      const { level, state = "right" } = item.value;
      const colour = state === "right" ? this.tint(level) : this.tints.wrong;
      if (!groups.has(colour)) groups.set(colour, []);
      groups.get(colour).push(item);
    }
    return groups;
  }

  /** Return the colour of a level. */
  tint(level) {
    return this.tints.levels[Math.min(level, this.levels) - 1];
  }

  #strokes(colour, items, width) {
    this.pen.strokeStyle = colour;
    this.pen.lineWidth = width;
    this.pen.beginPath();
    for (const { curve } of items) curve?.trace(this.pen);
    this.pen.stroke();
  }

  #disc(spot, radius, tint) {
    if (!spot) return;
    this.pen.fillStyle = tint === "wrong" ? this.tints.wrong : this.tint(tint);
    this.pen.beginPath();
    this.pen.arc(spot.x, spot.y, radius, 0, 7);
    this.pen.fill();
  }
}
