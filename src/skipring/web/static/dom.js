/** Creation and update of elements; unchanged values are not written. */

const SVG = "http://www.w3.org/2000/svg";

/** Return the element with an id that the page always has. */
export const byId = (id) => document.getElementById(id);

/** Create an HTML element with attributes and children (elements or text). */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function drawing(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) setAttribute(made, name, value);
  made.append(...children);
  return made;
}

/** Set an attribute if it differs; null removes it. */
export function setAttribute(target, name, value) {
  if (value === null) target.removeAttribute(name);
  else if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value);
}

/** Set the text if it differs. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** Show a banner with a sentence; null hides it. */
export function setBanner(target, text) {
  target.hidden = text === null;
  setText(target, text ?? "");
}

/** Update the children of a parent to a list of keyed values, reusing existing elements. */
export function keyed(parent, values, { key, make, change }) {
  const present = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const value of values) {
    const name = key(value);
    const child = present.get(name) ?? make(value);
    present.delete(name);
    child.dataset.key = name;
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    change?.(child, value);
  }
  for (const child of present.values()) child.remove();
}
