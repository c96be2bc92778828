/** Layer of nodes: a dot with its name, reused between scenes. */

import { drawing, setAttribute, setText } from "./dom.js";
import { dotRadius } from "./geometry.js";

const MARKS = {
  right: "right",
  edges: "label correct, edges wrong",
  label: "label wrong",
  dead: "does not answer",
  outside: "not in the topic",
};

/** Return the meaning of a mark. */
export const meaningOf = (mark) => MARKS[mark];

export class Nodes {
  constructor() {
    this.group = drawing("g", { class: "nodes" });
    this.items = new Map();
  }

  /** Show exactly these nodes. */
  show(nodes, frame, levels) {
    const present = new Set(nodes.map(({ node }) => node));
    for (const [name, { g }] of this.items) {
      if (present.has(name)) continue;
      g.remove();
      this.items.delete(name);
    }
    for (const node of [...nodes].sort(byRank)) {
      this.#change(this.#item(node.node), node, frame, levels);
    }
  }

  #item(name) {
    if (!this.items.has(name)) this.items.set(name, this.#made(name));
    return this.items.get(name);
  }

  #made(name) {
    const halo = drawing("circle", { class: "halo" });
    const dot = drawing("circle", { class: "dot" });
    const sign = drawing("path", { class: "sign" });
    const bits = drawing("tspan", { class: "bits", dx: "6" });
    const text = drawing("text", {}, drawing("tspan", { class: "name" }, name), bits);
    const attributes = { class: "node", "data-node": name, role: "button", tabindex: "-1" };
    const g = drawing("g", attributes, halo, dot, sign, text);
    this.group.append(g);
    return { g, halo, dot, sign, text, bits, radius: 0, tint: 1, out: undefined };
  }

  #change(item, node, frame, levels) {
    const radius = dotRadius(frame, node.label, levels);
    setAttribute(item.g, "data-mark", node.mark);
    setAttribute(item.g, "data-label", node.label ?? "");
    setAttribute(item.g, "aria-label", spoken(node));
    const level = Math.min(node.label?.length ?? levels, levels);
    item.tint = node.mark === "right" || node.mark === "outside" ? level : "wrong";
    item.g.style.setProperty("--level", level);
    setText(item.bits, node.label ?? "");
    if (radius === item.radius) return;
    item.radius = radius;
    item.out = undefined;
    setAttribute(item.dot, "r", radius.toFixed(2));
    setAttribute(item.halo, "r", (radius * 1.3 + 2.5).toFixed(2));
    setAttribute(item.sign, "d", cross(radius * 0.5));
  }

  /** Move these nodes to their spots. */
  place(spots, names) {
    for (const name of names) {
      const item = this.items.get(name);
      const spot = spots.get(name);
      if (!item || !spot) continue;
      item.g.setAttribute("transform", `translate(${spot.x.toFixed(2)} ${spot.y.toFixed(2)})`);
      item.g.classList.toggle("behind", Boolean(spot.isBehind));
      if (item.out !== spot.out) putText(item, spot.out);
    }
  }

  /** Return the element of a node, if it is shown. */
  element(name) {
    return this.items.get(name)?.g ?? null;
  }
}

/** Nodes with short labels are drawn last, above the others. */
const byRank = (a, b) => (b.label?.length ?? 0) - (a.label?.length ?? 0);

function spoken({ node, label, mark, reasons }) {
  const place = label === null ? "without a label" : `label ${label}`;
  return [`${node}, ${place}, ${meaningOf(mark)}`, ...reasons].join(". ");
}

/** Place a node's name on the outer side, or below the node where there is none. */
function putText(item, out) {
  item.out = out;
  const away = out ?? { x: 0, y: 1 };
  const distance = item.radius + 9;
  const anchor = away.x > 0.3 ? "start" : away.x < -0.3 ? "end" : "middle";
  setAttribute(item.text, "x", (away.x * distance).toFixed(1));
  setAttribute(item.text, "y", (away.y * (distance + (anchor === "middle" ? 3 : 0))).toFixed(1));
  setAttribute(item.text, "text-anchor", anchor);
}

const cross = (arm) => {
  const a = arm.toFixed(1);
  return `M-${a} -${a}L${a} ${a}M${a} -${a}L-${a} ${a}`;
};
