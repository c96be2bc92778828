/** Drawer of one node: its place, its violations with their repair, its journal. */

import { get } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { clock, count as whole } from "./format.js";
import { meaningOf } from "./nodes.js";

export class Drawer {
  /** `onClose` is called when the drawer closes. */
  constructor(onClose) {
    this.box = byId("drawer");
    this.body = byId("drawer-body");
    this.onClose = onClose;
    this.node = null;
    byId("drawer-close").addEventListener("click", () => this.close());
  }

  /** Open with the scene's data about a node, then add the node's own response. */
  async open(topic, seen) {
    this.node = seen.node;
    setText(byId("drawer-title"), seen.node);
    const asking = element("p", { class: "faint" }, "Asking the node …");
    this.body.replaceChildren(...facts(seen), asking);
    this.box.hidden = false;
    byId("drawer-title").focus({ preventScroll: true });
    await this.#ask(topic, seen);
  }

  async #ask(topic, seen) {
    let told;
    try {
      told = answer(await get("node", { topic, node: seen.node }));
    } catch (error) {
      told = [element("p", { class: "reason", "data-mark": "dead" }, error.message)];
    }
    if (this.node === seen.node) this.body.replaceChildren(...facts(seen), ...told);
  }

  /** Close the drawer. */
  close() {
    if (this.box.hidden) return;
    this.node = null;
    this.box.hidden = true;
    this.onClose();
  }
}

function facts({ label, turn, mark, count, root }) {
  const rows = {
    label: label ?? "none",
    "r(label)": turn === null ? "–" : String(Number(turn.toFixed(6))),
    publications: whole(count),
    "root hash": root || "unknown",
  };
  const list = Object.entries(rows).map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", { class: "mono" }, value)),
  );
  return [
    element("p", { class: "reason", "data-mark": mark }, `${capital(verdictOn(mark, label))}.`),
    element("dl", { class: "facts" }, ...list),
  ];
}

function verdictOn(mark, label) {
  if (mark === "right") return "label and edges are correct";
  return mark === "label" && label === null ? "it has no label" : meaningOf(mark);
}

function answer({ standing, tick, violations, journal }) {
  return [
    element("p", {}, capital(standing), element("span", { class: "faint" }, ` · tick ${tick}`)),
    element("h3", {}, "Faults, and their repair"),
    violations.length
      ? element("ul", { class: "violations" }, ...violations.map(violation))
      : element("p", { class: "faint" }, "This node is healthy."),
    element("h3", {}, "Recent changes, and their reasons"),
    journal.length
      ? element("ol", { class: "journal" }, ...journal.toReversed().map(entry))
      : element("p", { class: "faint" }, "No changes since its start."),
  ];
}

const violation = ({ layer, text, repair }) =>
  element(
    "li",
    {},
    element("p", { class: "reason", "data-mark": "label" }, `${layer}: ${text}`),
    element("p", { class: "faint" }, repair),
  );

function entry({ time, tick, field, before, after, cause, sender, why }) {
  const values = element("span", { class: "mono" }, `${before} → ${after}`);
  const change = element("p", {}, element("strong", {}, field), " ", values);
  const origin = sender === null ? cause : `${cause} from ${sender}`;
  const when = `${clock(time)} · tick ${tick} · ${origin}`;
  return element(
    "li",
    {},
    change,
    element("p", {}, why),
    element("p", { class: "faint number" }, when),
  );
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
