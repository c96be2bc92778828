/** The live ring: nodes at r(label), edges by level, the broadcast tree, journeys. */

import { Bow, Drop, edgeCurve } from "./curves.js";
import { byId, drawing, element, keyed, setAttribute } from "./dom.js";
import { frameOf, hasBits, hasNames, ringSpots, treeSpots } from "./geometry.js";
import { Glide, isCrowd } from "./glide.js";
import { Lines } from "./lines.js";
import { Motion } from "./motion.js";
import { Nodes } from "./nodes.js";
import { aboutEdge, aboutNode, Tooltip } from "./tooltip.js";
import { Viewport } from "./viewport.js";

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
const NEAR = [[0, 0], [4, 0], [-4, 0], [0, 4], [0, -4]]; // a thin line is met by a pointer near it

export class Ring {
  /** `onOpen` is called with the name of the chosen node. */
  constructor(onOpen) {
    this.svg = byId("ring");
    this.stage = byId("stage");
    this.onOpen = onOpen;
    this.scene = null;
    this.isTree = false;
    this.order = [];
    this.current = null;
    this.pointed = null;
    this.tooltip = new Tooltip();
    this.glide = new Glide();
    this.#makeLayers();
    this.motion = new Motion((names) => this.#onMove(names));
    this.viewport = new Viewport(this.stage, {
      pivot: () => this.spot(this.current) ?? { x: 0, y: 0 },
      onChange: (viewport) => this.#onViewport(viewport),
    });
    this.#listen();
  }

  #makeLayers() {
    this.circle = drawing("circle", { class: "orbit" });
    this.edges = new Lines("edge", { curveOf: edgeCurve, dress: dressEdge });
    this.tree = new Lines("tree-edge", {
      curveOf: (_, a, b) => new Drop(a, b),
      dress: (path, { level }) => setLevel(path, level),
    });
    this.trails = new Lines("trail", {
      curveOf: ({ a, b }) => this.way(a, b),
      dress: (path, { way }) => setAttribute(path, "data-way", way),
    });
    this.nodes = new Nodes();
    const layers = [this.edges, this.tree, this.trails, this.nodes].map(({ group }) => group);
    this.root = drawing("g", { class: "world" }, this.circle, ...layers);
    this.svg.append(this.root);
  }

  #listen() {
    new ResizeObserver(() => this.#arrange()).observe(this.stage);
    this.svg.addEventListener("keydown", (event) => this.#onKey(event));
    this.svg.addEventListener("click", (event) => this.#onClick(event));
    this.svg.addEventListener("focusin", (event) => this.#onFocus(event));
    this.svg.addEventListener("focusout", () => this.#point(null));
    this.svg.addEventListener("pointermove", (event) => this.#onPointer(event));
    this.svg.addEventListener("pointerleave", () => this.#point(null));
  }

  // -- content ------------------------------------------------------------------------------

  /** Show a scene; unchanged elements stay. */
  show(scene) {
    this.scene = scene;
    const sound = scene.edges.filter(({ state }) => state !== "wrong");
    this.levels = Math.max(1, ...sound.map(({ level }) => level));
    this.known = new Map(scene.nodes.map((node) => [node.node, node]));
    this.svg.style.setProperty("--levels", this.levels);
    this.edges.show(scene.edges);
    const levelOf = (name) => this.known.get(name)?.label?.length ?? this.levels;
    this.tree.show(scene.tree.map(([a, b]) => ({ a, b, level: levelOf(b) })));
    this.#order(scene.nodes);
    this.#legend();
    this.#arrange();
    if (this.pointed !== null && !this.known.has(this.pointed)) this.#point(null);
  }

  /** Reset for another topic. */
  clear() {
    this.showJourney(null);
    this.show({ nodes: [], edges: [], tree: [] });
    this.viewport.fit();
  }

  /** Draw the ring, or the broadcast tree with its root on top. */
  setTree(isTree) {
    this.isTree = isTree;
    setAttribute(this.svg, "data-drawing", isTree ? "tree" : "ring");
    this.#arrange();
  }

  /** Emphasise the path of one publication; null for none. */
  showJourney(journey) {
    const arrivals = journey?.arrivals.filter(({ from }) => from !== null) ?? [];
    this.trails.show(arrivals.map(({ from, node, way }) => ({ a: from, b: node, way })));
    this.svg.classList.toggle("on-journey", journey !== null);
    const reached = new Set(journey?.arrivals.map(({ node }) => node));
    for (const [name, { g }] of this.nodes.items) g.classList.toggle("reached", reached.has(name));
    if (this.frame) this.trails.place(this.motion.spots, this.frame);
  }

  #order(nodes) {
    const place = ({ turn }) => turn ?? 2;
    this.order = [...nodes].sort((a, b) => place(a) - place(b)).map(({ node }) => node);
    if (!this.known.has(this.current)) this.#rove(this.order[0] ?? null);
  }

  #legend() {
    const levels = Array.from({ length: this.levels }, (_, place) => place + 1);
    const list = byId("levels");
    list.style.setProperty("--levels", this.levels);
    keyed(list, levels, {
      key: (level) => `level-${level}`,
      make: (level) => {
        const item = element("li", {}, element("span", { class: "key" }), element("span"));
        item.style.setProperty("--level", level);
        return item;
      },
      change: (item, level) => {
        item.lastChild.textContent = level === this.levels ? "ring" : String(level);
      },
    });
  }

  // -- positions ------------------------------------------------------------------------------

  #arrange() {
    if (this.scene === null) return;
    const { clientWidth: width, clientHeight: height } = this.stage;
    const { nodes, tree } = this.scene;
    this.frame = frameOf(width, height, nodes.length);
    setAttribute(this.svg, "viewBox", `0 0 ${width} ${height}`);
    setAttribute(this.circle, "r", this.frame.radius.toFixed(1));
    setAttribute(this.circle, "cx", this.frame.centre.x.toFixed(1));
    setAttribute(this.circle, "cy", this.frame.centre.y.toFixed(1));
    this.#name(this.viewport.scale);
    this.nodes.show(nodes, this.frame, this.levels);
    const spots = this.isTree ? treeSpots(nodes, tree, this.frame) : ringSpots(nodes, this.frame);
    byId("tray-note").hidden = ![...spots.values()].some(({ out }) => out === null);
    setAttribute(this.nodes.element(this.current) ?? this.svg, "tabindex", "0");
    this.motion.go(spots);
    if (!this.isGliding) this.#placeAll();
  }

  /** Return true while many nodes move: the canvas shows them, the SVG waits. */
  get isGliding() {
    return this.motion.isMoving && isCrowd(this.scene.nodes.length);
  }

  #onMove(names) {
    setAttribute(this.svg, "data-moving", this.motion.isMoving);
    const wasGliding = this.svg.classList.contains("gliding");
    this.svg.classList.toggle("gliding", this.isGliding);
    if (this.isGliding) this.#glide(wasGliding);
    else if (wasGliding) this.#land();
    else if (names.length) this.#place(names);
  }

  #glide(wasGliding) {
    const lines = this.isTree ? this.tree : this.edges;
    if (!wasGliding) this.glide.prepare(this.levels);
    lines.bend(this.motion.spots, this.frame);
    this.glide.draw(lines, this.nodes, this.motion.spots, this.viewport);
  }

  #land() {
    this.#placeAll();
    this.glide.clear();
  }

  #placeAll() {
    this.#place(this.order, null);
  }

  #place(names, touched = names) {
    this.nodes.place(this.motion.spots, names);
    for (const lines of [this.edges, this.tree, this.trails]) {
      lines.place(this.motion.spots, this.frame, touched);
    }
  }

  #name(scale) {
    const crowd = (this.scene?.nodes.length ?? 0) / scale;
    const names = hasBits(crowd) ? "bits" : hasNames(crowd) ? "names" : "none";
    setAttribute(this.svg, "data-names", names);
  }

  #onViewport({ scale, x, y }) {
    this.root.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
    this.svg.style.setProperty("--scale", scale);
    this.#name(scale);
  }

  /** Return the current spot of a node. */
  spot(node) {
    return this.motion.spots.get(node) ?? null;
  }

  /** Return the radius of the dot of a node. */
  radius(node) {
    return this.nodes.items.get(node)?.radius ?? 3;
  }

  /** Return the curve from one node to another; null if one of them is missing. */
  way(from, to) {
    const [a, b] = [this.spot(from), this.spot(to)];
    if (!a || !b) return null;
    if (this.isTree) return this.tree.between(from, to) ?? new Drop(a, b);
    return this.edges.between(from, to) ?? new Bow(a, b, this.frame);
  }

  // -- pointer and keys -----------------------------------------------------------------------

  /** Put the focus on the ring. */
  focus() {
    if (this.spot(this.current)) this.viewport.reveal(this.spot(this.current));
    this.nodes.element(this.current)?.focus({ preventScroll: true });
  }

  #rove(name) {
    this.nodes.element(this.current)?.setAttribute("tabindex", "-1");
    this.current = name;
    this.svg.removeAttribute("tabindex");
    this.nodes.element(name)?.setAttribute("tabindex", "0");
  }

  #onKey(event) {
    const node = event.target.closest(".node");
    if (!node) return;
    if (event.key === "Enter" || event.key === " ") this.onOpen(node.dataset.node);
    else if (event.key in STEPS) this.#walk(STEPS[event.key]);
    else if (event.key === "Home") this.#walkTo(this.order[0]);
    else if (event.key === "End") this.#walkTo(this.order.at(-1));
    else return;
    event.preventDefault();
  }

  #walk(step) {
    const place = this.order.indexOf(this.current) + step;
    this.#walkTo(this.order[(place + this.order.length) % this.order.length]);
  }

  #walkTo(name) {
    this.#rove(name);
    this.focus();
  }

  #onClick(event) {
    const node = event.target.closest(".node");
    if (!node) return;
    this.#rove(node.dataset.node);
    this.onOpen(node.dataset.node);
  }

  #onFocus(event) {
    const node = event.target.closest(".node");
    if (!node || !node.matches(":focus-visible")) return;
    this.#rove(node.dataset.node);
    const { right, bottom } = node.querySelector(".dot").getBoundingClientRect();
    this.#point(node, right, bottom);
  }

  #onPointer({ clientX: x, clientY: y }) {
    const found = NEAR.map(([dx, dy]) => document.elementFromPoint(x + dx, y + dy));
    const met = found.map((each) => each?.closest(".node, .edge")).filter(Boolean);
    this.#point(met.find((each) => each.matches(".node")) ?? met[0] ?? null, x, y);
  }

  #point(target, x = 0, y = 0) {
    const name = target?.dataset.node ?? null;
    this.svg.classList.toggle("has-hot", name !== null);
    if (name !== this.pointed) this.edges.highlight(name);
    this.pointed = name;
    if (name !== null) this.tooltip.show(aboutNode(this.known.get(name)), x, y);
    else if (target) this.tooltip.show(aboutEdge(target.item.value), x, y);
    else this.tooltip.hide();
  }
}

function dressEdge(path, { level, kind, state, reason, a, b }) {
  setAttribute(path, "data-level", level);
  setAttribute(path, "data-kind", kind);
  setAttribute(path, "data-state", state);
  setLevel(path, level);
  const isRight = state === "right";
  setAttribute(path, "role", isRight ? null : "img");
  setAttribute(path, "aria-label", isRight ? null : `${a} – ${b}, ${state}: ${reason}`);
}

function setLevel(path, level) {
  if (path.style.getPropertyValue("--level") === String(level)) return;
  path.style.setProperty("--level", level);
}
