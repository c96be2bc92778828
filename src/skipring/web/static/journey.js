/** Journey of one publication: time, sender and origin of each arrival. */

import { get } from "./api.js";
import { byId, drawing, element, setText } from "./dom.js";
import { counted, latency } from "./format.js";

const NOTHING = "Choose a message to see when and from which node each member received it.";
const AGAIN_MS = 1500; // arrivals still come in for a while
const ATTEMPTS = 20; // and what was just published may not have been seen anywhere yet

export class Journey {
  /** `onShow` is called with the journey, or null; `onReplay` to replay it. */
  constructor({ onShow, onReplay }) {
    this.onShow = onShow;
    this.chosen = null;
    this.journey = null;
    byId("journey-close").addEventListener("click", () => this.close());
    byId("journey-replay").addEventListener("click", () => onReplay(this.journey));
    new ResizeObserver(() => drawChart(this.journey)).observe(byId("journey-chart"));
  }

  /** Show the journey of a message. */
  async open(topic, message) {
    this.chosen = message.id;
    byId("journey").scrollIntoView({ block: "nearest" });
    setText(byId("journey-name"), `${message.publisher} #${message.seq}`);
    byId("journey-close").disabled = false;
    await this.#load(topic, message);
  }

  async #load(topic, message, attempts = ATTEMPTS) {
    const { id, publisher, seq } = message;
    let journey = null;
    let summary;
    try {
      journey = timed(await get("journey", { topic, publisher, seq }));
      summary = summaryOf(journey);
    } catch (error) {
      summary = error.message;
    }
    if (this.chosen !== id) return;
    this.#show(journey, summary);
    if (attempts > 0 && (journey === null || journey.reached < journey.members)) {
      const again = () => this.chosen === id && this.#load(topic, message, attempts - 1);
      setTimeout(again, AGAIN_MS);
    }
  }

  /** Hide the journey. */
  close() {
    this.chosen = null;
    setText(byId("journey-name"), "\u00a0");
    byId("journey-close").disabled = true;
    this.#show(null, NOTHING);
  }

  #show(journey, summary) {
    this.journey = journey;
    setText(byId("journey-summary"), summary);
    byId("journey-replay").disabled = journey === null;
    byId("journey-rows").replaceChildren(...(journey?.arrivals ?? []).map(row));
    drawChart(journey);
    this.onShow(journey);
  }
}

/** Latencies start at the first arrival if the publication has no time. */
function timed(journey) {
  const [first] = journey.arrivals;
  const latencyOf = (arrival) => arrival.latency ?? arrival.time - first.time;
  const arrivals = journey.arrivals.map((each) => ({ ...each, latency: latencyOf(each) }));
  return { ...journey, arrivals };
}

function summaryOf({ members, reached, messages, duplicates, arrivals }) {
  const last = Math.max(0, ...arrivals.map((arrival) => arrival.latency));
  const repaired = arrivals.filter(({ way }) => way === "repair").length;
  return [
    `reached ${reached} of ${members}`,
    counted(messages, "message"),
    counted(duplicates, "duplicate"),
    ...(repaired ? [`${repaired} by repair`] : []),
    `last after ${latency(last)} ms`,
  ].join(", ");
}

function row(arrival) {
  const { node, hops, way, from, duplicates } = arrival;
  const number = (text) => element("td", { class: "number" }, text);
  return element(
    "tr",
    { "data-way": way, "data-node": node },
    element("td", {}, node),
    number(String(hops)),
    element("td", { class: "way" }, element("span", { class: "key" }), way),
    element("td", {}, from ?? "–"),
    number(latency(arrival.latency)),
    number(duplicates ? String(duplicates) : "–"),
  );
}

// -- the chart: latency from left to right (its root: many are early), hops downwards ----------

const LEFT = 34;
const FOOT = 20;
const LINES_MAX = 300; // more than these could not be told apart

function drawChart(journey) {
  const chart = byId("journey-chart");
  const { clientWidth: width, clientHeight: height } = chart;
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  if (journey === null) return chart.replaceChildren();
  const { arrivals } = journey;
  const slowest = Math.max(1, ...arrivals.map((arrival) => arrival.latency));
  const deepest = Math.max(1, ...arrivals.map(({ hops }) => hops));
  const spotOf = (arrival) => ({
    x: LEFT + 8 + Math.sqrt(Math.max(0, arrival.latency) / slowest) * (width - LEFT - 20),
    y: 12 + (arrival.hops / deepest) * (height - FOOT - 24),
  });
  const spots = new Map(arrivals.map((arrival) => [arrival.node, spotOf(arrival)]));
  const dots = arrivals.map((arrival) => dot(arrival, spots.get(arrival.node)));
  const axis = axisOf(deepest, slowest, width, height, spotOf);
  return chart.replaceChildren(...axis, ...links(arrivals, spots), ...dots);
}

function axisOf(deepest, slowest, width, height, spotOf) {
  const step = Math.ceil(deepest / 8);
  const rows = [];
  for (let hops = 0; hops <= deepest; hops += step) {
    const { y } = spotOf({ hops, latency: 0 });
    rows.push(drawing("line", { class: "grid", x1: LEFT, x2: width, y1: y, y2: y }));
    rows.push(drawing("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, String(hops)));
  }
  const note = (x, anchor, text) =>
    drawing("text", { x, y: height - 4, "text-anchor": anchor }, text);
  const quarter = slowest / 4;
  const notes = [
    note(0, "start", "hops"),
    note(LEFT + 8, "start", "0"),
    note(spotOf({ hops: 0, latency: quarter }).x, "middle", latency(quarter)),
    note(width - 4, "end", `${latency(slowest)} ms`),
  ];
  return [...rows, ...notes];
}

function links(arrivals, spots) {
  if (arrivals.length > LINES_MAX) return [];
  return arrivals
    .filter(({ from }) => spots.has(from))
    .map(({ from, node, way }) => {
      const [a, b] = [spots.get(from), spots.get(node)];
      const ends = { x1: a.x, y1: a.y, x2: b.x, y2: b.y };
      return drawing("line", { class: "leg", "data-way": way, ...ends });
    });
}

function dot({ node, way, hops, latency: delay }, { x, y }) {
  const told = `${node}: ${way}, ${counted(hops, "hop")}, ${latency(delay)} ms`;
  const title = drawing("title", {}, told);
  return drawing("circle", { class: "arrival", "data-way": way, cx: x, cy: y, r: 4 }, title);
}
