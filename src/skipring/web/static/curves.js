/** Curves between nodes: as an SVG path, traced by a pen, or point by point. */

const TURN = 2 * Math.PI;
const BEND = 0.3; // How far a shortcut bends inwards, as a share of its length.
const NEAR = 1; // so near to the circle a node stands on it; on its way to it, it does not

/** Return the curve of an edge: along the circle for ring neighbours, else bent to the centre. */
export function edgeCurve(edge, a, b, frame) {
  const isRing = edge.kind === "ring" && edge.state !== "wrong";
  const isAlong = isRing && isOnCircle(a, frame) && isOnCircle(b, frame);
  return isAlong ? new Arc(a, b, frame) : new Bow(a, b, frame);
}

const isOnCircle = ({ x, y }, { centre, radius }) =>
  Math.abs(Math.hypot(x - centre.x, y - centre.y) - radius) < NEAR;

/** Return the shorter arc along the circle. */
class Arc {
  constructor(a, b, { centre, radius }) {
    Object.assign(this, { a, b, centre, radius });
    this.from = Math.atan2(a.y - centre.y, a.x - centre.x);
    const swing = Math.atan2(b.y - centre.y, b.x - centre.x) - this.from;
    this.swing = swing - TURN * Math.round(swing / TURN);
  }

  get path() {
    const radius = this.radius.toFixed(1);
    return `M${spot(this.a)}A${radius} ${radius} 0 0 ${this.swing > 0 ? 1 : 0} ${spot(this.b)}`;
  }

  trace(pen) {
    const { centre, radius, from, swing } = this;
    const start = this.at(0);
    pen.moveTo(start.x, start.y);
    pen.arc(centre.x, centre.y, radius, from, from + swing, swing < 0);
  }

  at(share) {
    const angle = this.from + this.swing * share;
    const { centre, radius } = this;
    return { x: centre.x + radius * Math.cos(angle), y: centre.y + radius * Math.sin(angle) };
  }
}

/** Return a chord bent towards the centre; longer chords bend more. */
export class Bow {
  constructor(a, b, { centre }) {
    const middle = mix(a, b, 0.5);
    const depth = Math.hypot(centre.x - middle.x, centre.y - middle.y);
    const bend = BEND * Math.hypot(a.x - b.x, a.y - b.y);
    this.pole = depth ? mix(middle, centre, Math.min(1, bend / depth)) : middle;
    Object.assign(this, { a, b });
  }

  get path() {
    return `M${spot(this.a)}Q${spot(this.pole)} ${spot(this.b)}`;
  }

  trace(pen) {
    pen.moveTo(this.a.x, this.a.y);
    pen.quadraticCurveTo(this.pole.x, this.pole.y, this.b.x, this.b.y);
  }

  at(share) {
    return mix(mix(this.a, this.pole, share), mix(this.pole, this.b, share), share);
  }
}

/** Return a curve of the rooted drawing, from parent to child. */
export class Drop {
  constructor(a, b) {
    const middle = (a.y + b.y) / 2;
    Object.assign(this, { a, b, upper: { x: a.x, y: middle }, lower: { x: b.x, y: middle } });
  }

  get path() {
    return `M${spot(this.a)}C${spot(this.upper)} ${spot(this.lower)} ${spot(this.b)}`;
  }

  trace(pen) {
    pen.moveTo(this.a.x, this.a.y);
    pen.bezierCurveTo(this.upper.x, this.upper.y, this.lower.x, this.lower.y, this.b.x, this.b.y);
  }

  at(share) {
    const { a, b, upper, lower } = this;
    const middle = mix(upper, lower, share);
    const first = mix(mix(a, upper, share), middle, share);
    const second = mix(middle, mix(lower, b, share), share);
    return mix(first, second, share);
  }
}

/** Return the reversed curve. */
export const reversed = (curve) => ({ path: curve.path, at: (share) => curve.at(1 - share) });

/** Return the midpoint of two points. */
export const mix = (a, b, share) => ({
  x: a.x + (b.x - a.x) * share,
  y: a.y + (b.y - a.y) * share,
});

const spot = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;
