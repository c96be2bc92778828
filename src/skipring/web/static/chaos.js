/** Buttons for fault injection; the card exists only if the server allows it. */

import { post } from "./api.js";
import { byId, element, keyed, setAttribute, setText } from "./dom.js";

const DAMAGES = [
  {
    damage: "database",
    name: "Wipe the database",
    text: "The supervisor loses its database; it learns the members from their requests.",
  },
  {
    damage: "labels",
    name: "Scramble labels",
    text: "Every node gets a wrong label; the supervisor's database stays.",
  },
  {
    damage: "tries",
    name: "Corrupt the tries",
    text: "Nodes lose publications and get wrong hashes; at least one node keeps each publication.",
  },
  {
    damage: "partition",
    name: "Partition",
    text: "The nodes are split into two halves that cannot reach each other.",
  },
  { damage: "heal", name: "End the partition", text: "Traffic passes again between the halves." },
];

export class Chaos {
  /** Create the card; `topic()` is the topic to damage. */
  constructor(adversaries, topic) {
    this.topic = topic;
    this.nodes = element("select", { "aria-label": "Node to kill", id: "chaos-node" });
    const attributes = { class: "outcome", role: "status", id: "chaos-outcome" };
    this.outcome = element("p", attributes, "\u00a0");
    byId("experiments").append(this.#card(adversaries));
  }

  #card(adversaries) {
    const head = element(
      "header",
      {},
      element("h2", { id: "chaos-title" }, "Chaos"),
      element("p", { class: "hint" }, "break it, then watch it heal"),
    );
    const attributes = { class: "card", id: "chaos", "aria-labelledby": "chaos-title" };
    const rows = [
      this.#killRow(),
      ...DAMAGES.map((each) => this.#row({ ...each, body: () => ({ damage: each.damage }) })),
      this.#adversaryRow(adversaries),
    ];
    return element("section", attributes, head, ...rows, this.outcome);
  }

  #killRow() {
    return this.#row({
      damage: "kill",
      name: "Kill",
      text: "The process ends without notice; its neighbours report it as unresponsive.",
      body: () => ({ damage: "kill", nodes: [this.nodes.value] }),
      choice: this.nodes,
    });
  }

  #adversaryRow(adversaries) {
    const options = adversaries.map(({ code, text }) =>
      element("option", { value: code }, `${code} ${text}`),
    );
    const attributes = { "aria-label": "Starting state", id: "chaos-adversary" };
    const menu = element("select", attributes, ...options);
    if (adversaries.some(({ code }) => code === "A15")) menu.value = "A15";
    return this.#row({
      damage: "adversary",
      name: "Put into",
      text: "The topic gets an initial state from the simulator's catalog.",
      body: () => ({ damage: "adversary", code: menu.value }),
      choice: menu,
    });
  }

  #row({ damage, name, text, body, choice }) {
    const id = `chaos-${damage}-text`;
    const attributes = { type: "button", "data-damage": damage, "aria-describedby": id };
    const button = element("button", attributes, name);
    button.addEventListener("click", () => this.#inflict(button, body()));
    const what = element("p", { class: "faint", id }, text);
    return element("div", { class: "damage" }, button, ...(choice ? [choice] : []), what);
  }

  /** List the live nodes. */
  offer(nodes) {
    const living = nodes.filter(({ mark }) => mark !== "dead").map(({ node }) => node);
    keyed(this.nodes, living.sort(), {
      key: (name) => name,
      make: (name) => element("option", { value: name }, name),
    });
  }

  async #inflict(button, body) {
    button.disabled = true;
    try {
      const { done } = await post("chaos", { topic: this.topic() }, body);
      this.#tell("right", done);
    } catch (error) {
      this.#tell("wrong", error.message);
    }
    button.disabled = false;
  }

  #tell(state, text) {
    setAttribute(this.outcome, "data-state", state);
    setText(this.outcome, text);
  }
}
