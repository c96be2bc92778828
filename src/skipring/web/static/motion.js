/** Spots that move to their targets. */

import { mix } from "./curves.js";

const GLIDE_MS = 750;
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** Return true if the reader has requested reduced motion. */
export const isStill = () => still.matches;

export class Motion {
  /** `onMove` receives the names of the moved spots, until `isMoving` is false. */
  constructor(onMove) {
    this.spots = new Map();
    this.onMove = onMove;
    this.moves = new Map();
    this.frame = null;
  }

  /** Set the target of every spot; new spots start at their target, missing ones are removed. */
  go(targets) {
    const began = performance.now();
    const placed = [];
    for (const name of this.spots.keys()) if (!targets.has(name)) this.#forget(name);
    for (const [name, target] of targets) {
      const now = this.spots.get(name);
      if (!now || isStill()) placed.push(this.#place(name, target));
      else if (!isSame(this.moves.get(name)?.target ?? now, target)) {
        this.moves.set(name, { start: now, target, began });
      }
    }
    this.onMove(placed);
    if (this.isMoving && this.frame === null) this.#next();
  }

  /** Return true while a spot moves. */
  get isMoving() {
    return this.moves.size > 0;
  }

  #place(name, target) {
    this.spots.set(name, target);
    this.moves.delete(name);
    return name;
  }

  #forget(name) {
    this.spots.delete(name);
    this.moves.delete(name);
  }

  #next() {
    this.frame = requestAnimationFrame((time) => this.#step(time));
  }

  #step(time) {
    const moved = [...this.moves.keys()];
    for (const [name, { start, target, began }] of this.moves) {
      const share = (time - began) / GLIDE_MS;
      if (share >= 1) this.#place(name, target);
      else this.spots.set(name, { ...target, ...mix(start, target, eased(share)) });
    }
    this.frame = null;
    this.onMove(moved);
    if (this.isMoving && this.frame === null) this.#next();
  }
}

const isSame = (a, b) =>
  Math.abs(a.x - b.x) < 0.05 && Math.abs(a.y - b.y) < 0.05 && a.out?.x === b.out?.x;

const eased = (share) => {
  const within = Math.max(0, share);
  return within < 0.5 ? 4 * within ** 3 : 1 - (2 - 2 * within) ** 3 / 2;
};
