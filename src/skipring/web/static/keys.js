/** Keys that work on the whole page, except in input fields. */

import { byId } from "./dom.js";

/** Bind keys to actions, and `?` to the list of them. */
export function startKeys(actions) {
  const help = byId("help");
  const bound = { ...actions, "?": () => help.showModal() };
  byId("keys").addEventListener("click", bound["?"]);
  byId("help-close").addEventListener("click", () => help.close());
  document.addEventListener("keydown", (event) => {
    const isChord = event.ctrlKey || event.metaKey || event.altKey;
    if (isChord || isTyping(event.target) || help.open) return;
    const action = bound[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

const isTyping = (target) =>
  target.matches("textarea, select, input:not([type='range'])") || target.isContentEditable;
