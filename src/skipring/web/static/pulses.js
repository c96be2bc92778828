/** Publications as pulses along the edges, on a canvas above the ring. */

import { byId } from "./dom.js";
import { isStill } from "./motion.js";
import { colours } from "./theme.js";

const HOP_MS = 420; // Our guess: as quick as an eye can follow.
const RIPPLE_MS = 620;
const TAIL = 8;
const TAIL_STEP = 0.03;
const PULSES_MAX = 600; // More than this is a glow, not pulses; what exceeds it is not drawn.
const REMEMBERED_MAX = 400;

export class Pulses {
  constructor(ring) {
    this.ring = ring;
    this.canvas = byId("pulses");
    this.pen = this.canvas.getContext("2d");
    this.flying = [];
    this.started = new Map();
    this.frame = null;
    new ResizeObserver(() => this.#fit()).observe(this.canvas);
    this.repaint();
  }

  /** Read the colours of the theme. */
  repaint() {
    this.ink = colours("spread", "repair", "own");
  }

  #fit() {
    const density = devicePixelRatio;
    this.canvas.width = Math.round(this.canvas.clientWidth * density);
    this.canvas.height = Math.round(this.canvas.clientHeight * density);
  }

  /** Start pulses; those of one publication start hop by hop. */
  add(pulses) {
    if (document.hidden) return;
    const now = performance.now();
    for (const pulse of pulses) {
      if (this.flying.length >= PULSES_MAX) break;
      this.flying.push({ ...pulse, begins: this.#beginning(pulse, now) });
    }
    this.#wake();
  }

  #beginning({ publisher, seq, hops, way }, now) {
    if (way === "repair") return now;
    const name = `${publisher} ${seq}`;
    if (!this.started.has(name)) this.started.set(name, now - Math.max(0, hops - 1) * HOP_MS);
    if (this.started.size > REMEMBERED_MAX) this.started.delete(this.started.keys().next().value);
    return Math.max(now, this.started.get(name) + Math.max(0, hops - 1) * HOP_MS);
  }

  /** Replay the path of a publication slowly, hop by hop. */
  replay(journey) {
    this.clear();
    const begin = performance.now() + 200;
    const { publisher, seq } = journey;
    this.flying = journey.arrivals.slice(0, PULSES_MAX).map(({ from, node, hops, way }) => ({
      from,
      to: node,
      way,
      publisher,
      seq,
      slow: 2.2,
      begins: begin + Math.max(0, hops - 1) * HOP_MS * 2.2,
    }));
    this.#wake();
  }

  /** Remove all pulses. */
  clear() {
    this.flying = [];
    this.started.clear();
  }

  #wake() {
    if (this.frame === null && this.flying.length) {
      this.frame = requestAnimationFrame((now) => this.#draw(now));
    }
  }

  #draw(now) {
    this.frame = null;
    this.#prepare();
    this.flying = this.flying.filter((pulse) => this.#drawOne(pulse, now));
    if (this.flying.length) this.#wake();
    else this.#prepare();
  }

  #prepare() {
    const { scale, x, y } = this.ring.viewport;
    const density = devicePixelRatio;
    this.pen.setTransform(1, 0, 0, 1, 0, 0);
    this.pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.pen.setTransform(density * scale, 0, 0, density * scale, density * x, density * y);
    this.pen.lineCap = "round";
  }

  /** Draw one pulse; return false when it has ended. */
  #drawOne(pulse, now) {
    const hop = pulse.from === null || isStill() ? 0 : HOP_MS * (pulse.slow ?? 1);
    const age = now - pulse.begins;
    this.pen.fillStyle = this.pen.strokeStyle = this.ink[pulse.way];
    if (age < 0) return true;
    if (age < hop) this.#comet(pulse, age / hop);
    else this.#ripple(pulse, (age - hop) / RIPPLE_MS);
    return age < hop + RIPPLE_MS;
  }

  #comet({ from, to }, share) {
    const curve = this.ring.way(from, to);
    if (curve === null) return;
    const size = Math.max(1.6, this.ring.radius(to) * 0.42);
    const gone = share * share * (3 - 2 * share);
    for (let place = TAIL; place > 0; place--) {
      const left = 1 - place / (TAIL + 1);
      const [tip, end] = [gone - (place - 1) * TAIL_STEP, gone - place * TAIL_STEP];
      this.pen.globalAlpha = 0.8 * left ** 1.5;
      this.pen.lineWidth = 2 * size * left;
      if (tip > 0) this.#stroke(curve.at(Math.max(0, end)), curve.at(tip));
    }
    this.pen.globalAlpha = 1;
    this.#disc(curve.at(gone), size);
  }

  #ripple({ to }, share) {
    const spot = this.ring.spot(to);
    if (spot === null || share >= 1) return;
    const radius = this.ring.radius(to);
    const grown = isStill() ? 0.4 : 1 - (1 - share) ** 3;
    this.pen.globalAlpha = 0.8 * (1 - share) ** 1.5;
    this.pen.lineWidth = Math.max(0.8, radius * 0.2);
    this.pen.beginPath();
    this.pen.arc(spot.x, spot.y, radius + 1 + grown * Math.max(3.5, radius * 1.1), 0, 7);
    this.pen.stroke();
    this.pen.globalAlpha = 1;
  }

  #stroke(a, b) {
    this.pen.beginPath();
    this.pen.moveTo(a.x, a.y);
    this.pen.lineTo(b.x, b.y);
    this.pen.stroke();
  }

  #disc({ x, y }, radius) {
    this.pen.beginPath();
    this.pen.arc(x, y, radius, 0, 7);
    this.pen.fill();
  }
}
