/** Theme: light, dark, or that of the system. */

import { byId, setText } from "./dom.js";

const KEY = "skipring-theme";
const CHOICES = ["system", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Bind the button; `onChange` is called when colours may have changed. */
export function startTheme(onChange) {
  const button = byId("theme");
  const show = () => {
    const chosen = chosenTheme();
    setText(byId("theme-text"), chosen);
    button.setAttribute("aria-label", `Theme: ${chosen}`);
  };
  button.addEventListener("click", () => {
    choose(CHOICES[(CHOICES.indexOf(chosenTheme()) + 1) % CHOICES.length]);
    show();
    onChange();
  });
  dark.addEventListener("change", onChange);
  show();
}

const chosenTheme = () => document.documentElement.dataset.theme ?? "system";

function choose(theme) {
  if (theme === "system") {
    localStorage.removeItem(KEY);
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem(KEY, theme);
    document.documentElement.dataset.theme = theme;
  }
}

/** Return the colours of custom properties, for canvases. */
export function colours(...names) {
  return probed((probe) =>
    Object.fromEntries(names.map((name) => [name, colourOf(probe, `var(--${name})`)])),
  );
}

/** Colours of the levels, and of violations. */
export function tints(levels) {
  return probed((probe) => {
    probe.className = "tinted";
    probe.style.setProperty("--levels", levels);
    const tintOf = (_, place) => {
      probe.style.setProperty("--level", place + 1);
      return colourOf(probe, "var(--tint)");
    };
    const found = Array.from({ length: levels }, tintOf);
    return { levels: found, wrong: colourOf(probe, "var(--wrong)") };
  });
}

function probed(question) {
  const probe = document.createElement("span");
  document.body.append(probe);
  const found = question(probe);
  probe.remove();
  return found;
}

function colourOf(probe, colour) {
  probe.style.color = colour;
  return getComputedStyle(probe).color;
}
