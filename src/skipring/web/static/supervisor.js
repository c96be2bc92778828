/** Card of the supervisor: its load beside the bound, and the state of its database. */

import { byId, element, keyed, setAttribute, setText } from "./dom.js";
import { count, counted, decimal } from "./format.js";

const CONDITIONS = {
  i: "labels without a subscriber",
  ii: "subscribers with several labels",
  iii: "labels missing below n",
  iv: "labels not among the first n",
};
const ROOM = 2.5; // the bound stands here in the bar, and what exceeds it has room

/** Show the supervisor of a scene. */
export function showSupervisor(card) {
  setAttribute(byId("supervisor"), "data-answers", card.answers);
  setText(byId("supervisor-address"), card.address);
  const state = card.answers
    ? "Answers. It assigns labels; no publication passes through it."
    : "Does not answer. Publishing continues without it; joining and leaving wait.";
  setText(byId("supervisor-state"), state);
  showLoad(card);
  showConditions(card.conditions);
  showFacts({ intervals: card.ticks, suspects: card.suspects, evictions: card.evictions });
}

function showLoad({ requests, bound }) {
  const meter = byId("load");
  const span = Math.max(bound * ROOM, requests * 1.1);
  meter.style.setProperty("--load", requests / span);
  meter.style.setProperty("--bound", bound / span);
  setAttribute(meter, "aria-valuemax", span.toFixed(3));
  setAttribute(meter, "aria-valuenow", requests.toFixed(3));
  setAttribute(meter, "data-state", requests > bound * 1.5 ? "busy" : "calm");
  setText(byId("load-text"), requests.toFixed(2));
  setText(byId("bound-text"), `${decimal(bound, 3)} expected from healthy rings`);
}

function showConditions(conditions) {
  keyed(byId("conditions"), Object.entries(CONDITIONS), {
    key: ([name]) => name,
    make: ([name, text]) => light(name, text),
    change: (item, [name]) => {
      const broken = conditions[name] ?? 0;
      setAttribute(item, "data-state", broken ? "wrong" : "right");
      setText(item.lastChild, broken ? counted(broken, "entry", "entries") : "none");
    },
  });
}

function light(name, text) {
  const lamp = element("span", { class: "lamp", "aria-hidden": "true" });
  const number = element("span", { class: "faint numeral" }, `(${name})`);
  const verdict = element("span", { class: "verdict" });
  return element("li", {}, lamp, number, element("span", {}, text), verdict);
}

function showFacts(facts) {
  keyed(byId("supervisor-facts"), Object.entries(facts), {
    key: ([name]) => name,
    make: ([name]) => element("div", {}, element("dt", {}, name), element("dd")),
    change: (item, [, value]) => setText(item.lastChild, count(value)),
  });
}
