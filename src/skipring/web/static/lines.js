/** Layer of lines between nodes, one path each, reused between scenes. */

import { reversed } from "./curves.js";
import { drawing, setAttribute } from "./dom.js";

export class Lines {
  /** `curveOf(value, a, b, frame)` returns the curve of a line; `dress(path, value)` styles it. */
  constructor(className, { curveOf, dress }) {
    this.group = drawing("g", { class: `${className}s` });
    this.className = className;
    this.curveOf = curveOf;
    this.dress = dress;
    this.items = new Map();
    this.byNode = new Map();
  }

  /** Show these lines (values with `a` and `b`) and no others. */
  show(values) {
    const before = this.items;
    this.items = new Map();
    this.byNode = new Map();
    for (const value of values) this.#keep(value, before);
    for (const { path } of before.values()) path.remove();
  }

  #keep(value, before) {
    const key = this.#freeKey(`${value.a} ${value.b}`);
    const item = before.get(key) ?? this.#made(value);
    before.delete(key);
    item.value = value;
    this.dress(item.path, value);
    this.items.set(key, item);
    for (const end of [value.a, value.b]) {
      if (!this.byNode.has(end)) this.byNode.set(end, []);
      this.byNode.get(end).push(item);
    }
  }

  #freeKey(key) {
    return this.items.has(key) ? this.#freeKey(`${key} again`) : key;
  }

  #made({ a, b }) {
    const path = drawing("path", { class: this.className, "data-a": a, "data-b": b });
    this.group.append(path);
    const item = { path, curve: null, value: null };
    path.item = item;
    return item;
  }

  /** Compute the curves of these nodes again; of all nodes without names. */
  bend(spots, frame, names = null) {
    const touched = names === null ? [...this.items.values()] : this.#touched(names);
    for (const item of touched) {
      const [a, b] = [spots.get(item.value.a), spots.get(item.value.b)];
      item.curve = a && b ? this.curveOf(item.value, a, b, frame) : null;
    }
    return touched;
  }

  #touched(names) {
    return [...new Set(names.flatMap((name) => this.byNode.get(name) ?? []))];
  }

  /** Compute the curves again, and draw them. */
  place(spots, frame, names = null) {
    for (const { path, curve } of this.bend(spots, frame, names)) {
      setAttribute(path, "d", curve?.path ?? null);
    }
  }

  /** Return the curve from one node to another; null if there is none. */
  between(from, to) {
    const forth = this.items.get(`${from} ${to}`)?.curve;
    if (forth) return forth;
    const back = this.items.get(`${to} ${from}`)?.curve;
    return back ? reversed(back) : null;
  }

  /** Mark the lines of one node only; null for none. */
  highlight(node) {
    for (const path of this.group.querySelectorAll(".hot")) path.classList.remove("hot");
    for (const { path } of this.byNode.get(node) ?? []) path.classList.add("hot");
  }
}
