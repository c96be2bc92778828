/** Tooltip of the element under the pointer or focus, with its violations. */

import { byId, element } from "./dom.js";
import { counted } from "./format.js";
import { meaningOf } from "./nodes.js";

const AWAY = 14;

export class Tooltip {
  constructor() {
    this.box = byId("tooltip");
  }

  /** Show parts near a point of the window. */
  show(parts, x, y) {
    this.box.replaceChildren(...parts);
    this.box.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.box;
    const left = x + AWAY + width > innerWidth ? x - AWAY - width : x + AWAY;
    const top = y + AWAY + height > innerHeight ? y - AWAY - height : y + AWAY;
    this.box.style.left = `${Math.max(4, left)}px`;
    this.box.style.top = `${Math.max(4, top)}px`;
  }

  /** Show nothing. */
  hide() {
    this.box.hidden = true;
  }
}

/** Return the tooltip of a node. */
export function aboutNode({ node, label, mark, reasons, count, root }) {
  const place = label === null ? "no label" : `label ${label}`;
  const stored = counted(count, "publication");
  return [
    title(node, place),
    ...sentences(mark, reasons.length || mark === "right" ? reasons : [meaningOf(mark)]),
    element("p", { class: "faint" }, `${stored} · root ${root || "unknown"}`),
  ];
}

/** Return the tooltip of an edge. */
export function aboutEdge({ a, b, level, kind, state, reason }) {
  const name = kind === "ring" ? "ring edge" : `shortcut of level ${level}`;
  return [title(`${a} – ${b}`, name), ...sentences(state, reason ? [`${state}: ${reason}`] : [])];
}

const title = (name, more) =>
  element("p", {}, element("strong", {}, name), " ", element("span", { class: "faint" }, more));

const sentences = (mark, texts) =>
  texts.map((text) => element("p", { class: "reason", "data-mark": mark }, text));
