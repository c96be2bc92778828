/** Health of the newest scene, and the duration of the last repair. */

import { byId, setAttribute, setText } from "./dom.js";
import { count, counted, seconds, stateOf, verdictOf } from "./format.js";

export class Verdict {
  constructor() {
    this.clear();
  }

  /** Reset for another topic. */
  clear() {
    this.brokenSince = null;
    this.wasHealthy = null;
    setText(byId("verdict"), "reading the state of the ring");
    setAttribute(byId("verdict"), "data-state", "unknown");
    setText(byId("figures"), "\u00a0");
    setText(byId("healed"), "\u00a0");
  }

  /** Show the health of the newest scene. */
  show(scene) {
    const verdict = byId("verdict");
    setText(verdict, verdictOf(scene));
    setAttribute(verdict, "data-state", stateOf(scene));
    setText(byId("figures"), figures(scene));
    document.title = `${scene.topic}: ${verdictOf(scene)}`;
    this.#follow(scene);
  }

  #follow({ legitimate, time }) {
    if (legitimate && this.brokenSince !== null) {
      const took = seconds(time - this.brokenSince);
      this.brokenSince = null;
      setText(byId("healed"), `healed in ${took}`);
      announce(`The ring is healthy again after ${took}.`);
    } else if (!legitimate) {
      if (this.wasHealthy) announce("The ring is degraded; repair is in progress.");
      this.brokenSince ??= time;
      setText(byId("healed"), `for ${seconds(time - this.brokenSince)}`);
    }
    this.wasHealthy = legitimate;
  }
}

function figures({ members, publications, roots, nodes }) {
  const dead = nodes.filter(({ mark }) => mark === "dead").length;
  return [
    counted(members, "member"),
    ...(dead ? [`${count(dead)} silent`] : []),
    counted(publications, "publication"),
    roots > 1 ? `${count(roots)} root hashes` : "one root hash",
  ].join(" · ");
}

/** Announce a text to screen readers. */
function announce(text) {
  setText(byId("announcer"), text);
}
