/** The verdict on the newest scene, and how long healing took. */

import { byId, setAttribute, setText } from "./dom.js";
import { count, counted, seconds, verdictOf } from "./format.js";

export class Verdict {
  constructor() {
    this.clear();
  }

  /** Forget everything, for another topic. */
  clear() {
    this.brokenSince = null;
    this.wasLegitimate = null;
    setText(byId("verdict"), "looking at the ring");
    setAttribute(byId("verdict"), "data-state", "unknown");
    setText(byId("figures"), "\u00a0");
    setText(byId("healed"), "\u00a0");
  }

  /** Say the truth about the newest scene. */
  show(scene) {
    const verdict = byId("verdict");
    setText(verdict, verdictOf(scene));
    setAttribute(verdict, "data-state", scene.legitimate ? "legitimate" : "healing");
    setText(byId("figures"), figures(scene));
    document.title = `${scene.topic}: ${verdictOf(scene)}`;
    this.#follow(scene);
  }

  #follow({ legitimate, time }) {
    if (legitimate && this.brokenSince !== null) {
      const took = seconds(time - this.brokenSince);
      this.brokenSince = null;
      setText(byId("healed"), `healed in ${took}`);
      announce(`The ring is legitimate again after ${took}.`);
    } else if (!legitimate) {
      if (this.wasLegitimate) announce("The ring is not legitimate any more; it heals.");
      this.brokenSince ??= time;
      setText(byId("healed"), `for ${seconds(time - this.brokenSince)}`);
    }
    this.wasLegitimate = legitimate;
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

/** Tell those who listen to the page instead of looking at it. */
function announce(text) {
  setText(byId("announcer"), text);
}
