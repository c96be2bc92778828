/** Table of topics; a click selects a topic. */

import { get } from "./api.js";
import { byId, element, keyed, setAttribute, setBanner, setText } from "./dom.js";
import { count, counted, decimal } from "./format.js";

const PIPELINES_MS = 5000;

export class Topics {
  /** `onChoose` is called with a topic's name. */
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.current = null;
    byId("topic-rows").addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row) this.onChoose(row.dataset.topic);
    });
  }

  /** Mark the selected topic. */
  mark(topic) {
    this.current = topic;
    for (const row of byId("topic-rows").children) this.#mark(row);
  }

  #mark(row) {
    setAttribute(row, "aria-current", row.dataset.topic === this.current ? "true" : null);
  }

  /** Show the overview of all topics. */
  show({ topics, supervisors, unlisted = 0 }) {
    const silent = supervisors.filter(({ answers }) => !answers).length;
    const asked = counted(supervisors.length, "supervisor");
    setText(byId("topics-hint"), silent ? `${silent} of ${asked} silent` : asked);
    setBanner(byId("topics-more"), unlisted ? `and ${counted(unlisted, "more topic")}` : null);
    keyed(byId("topic-rows"), topics, {
      key: ({ topic }) => topic,
      make: ({ topic }) => made(topic),
      change: (row, topic) => this.#change(row, topic),
    });
  }

  /** Show the lag of pipelines, now and every few seconds. */
  async followPipelines() {
    const lags = await get("pipelines").catch(() => []);
    setBanner(byId("pipelines"), lags.map(lagOf).join(" · ") || null);
    setTimeout(() => this.followPipelines(), PIPELINES_MS);
  }

  #change(row, { members, publications, rate, lag, roots, differs, healthy }) {
    const [, nodes, stored, speed, behind, content] = row.children;
    setText(nodes, count(members));
    setText(stored, count(publications));
    setText(speed, decimal(rate, 1));
    setText(behind, count(lag));
    setText(content, contentOf(roots, differs));
    const others = differs.length ? `${differs.join(", ")} differ from most` : null;
    setAttribute(content, "title", others);
    setAttribute(row, "data-content", roots > 1 ? "differs" : "equal");
    setAttribute(row, "data-state", healthy ? "right" : "wrong");
    setAttribute(row.querySelector(".lamp"), "aria-label", healthy ? "healthy" : "degraded");
    this.#mark(row);
  }
}

function made(topic) {
  const lamp = element("span", { class: "lamp", role: "img" });
  const button = element("button", { type: "button", class: "plain" }, topic);
  const cells = ["number", "number", "number", "number", "content"];
  return element(
    "tr",
    { "data-topic": topic },
    element("td", {}, lamp, button),
    ...cells.map((name) => element("td", { class: name })),
  );
}

function contentOf(roots, differs) {
  if (roots <= 1) return "equal";
  const named = differs.slice(0, 2).join(", ");
  const more = differs.length > 2 ? ` and ${differs.length - 2} more` : "";
  return named ? `${roots}: ${named}${more}` : `${roots} different`;
}

function lagOf({ address, behind, is_stream: isStream, age_s: age }) {
  if (behind === null) return `pipeline ${address} does not answer`;
  const topics = Object.entries(behind).map(([topic, more]) => `${topic} ${count(more)} behind`);
  if (isStream) return `streams ${address}: ${topics.join(", ") || "no lag known"}`;
  const last = age === null ? "no batch yet" : `last batch ${count(Math.round(age))} s ago`;
  return [`pipeline ${address}: ${topics.join(", ")}`.replace(/: $/, ""), last].join(", ");
}
