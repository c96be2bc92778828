/** Dashboard: passes events of the server to the views, and actions of the reader to the server. */

import { get } from "./api.js";
import { Chaos } from "./chaos.js";
import { byId, setAttribute, setBanner, setText } from "./dom.js";
import { Drawer } from "./drawer.js";
import { clock, verdictOf } from "./format.js";
import { Journey } from "./journey.js";
import { startKeys } from "./keys.js";
import { Messages } from "./messages.js";
import { Pulses } from "./pulses.js";
import { Ring } from "./ring.js";
import { Stream } from "./stream.js";
import { showSupervisor } from "./supervisor.js";
import { startTheme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { Topics } from "./topics.js";
import { Verdict } from "./verdict.js";

const CONNECTION = {
  open: ["live", null],
  lost: [
    "connection lost",
    "The connection to the dashboard is lost; the page shows an old state. Reconnecting …",
  ],
  refused: ["refused", null], // the server says why
};

class Dashboard {
  constructor(settings) {
    this.topic = null;
    this.settings = settings;
    this.newest = null;
    this.past = null;
    this.isLive = false;
    this.#makeViews();
    if (settings.chaos) this.chaos = new Chaos(settings.adversaries ?? [], () => this.topic);
    this.stream = new Stream({
      scene: (scene) => this.#onScene(scene),
      pulses: ({ pulses }) => this.past === null && this.pulses.add(pulses),
      messages: ({ messages }) => this.messages.add(messages),
      overview: (overview) => this.#onOverview(overview),
      trouble: ({ text }) => setBanner(byId("trouble"), text),
      state: (state, why) => this.#onConnection(state, why),
    });
  }

  #makeViews() {
    const openNode = (name) => this.drawer.open(this.topic, this.ring.known.get(name));
    this.ring = new Ring(openNode);
    this.pulses = new Pulses(this.ring);
    this.verdict = new Verdict();
    this.drawer = new Drawer(() => this.ring.focus());
    this.timeline = new Timeline((sample) => this.#replay(sample));
    this.timeline.name(this.settings.layers);
    this.topics = new Topics((topic) => goTo(topic));
    if (this.settings.pipelines.length) this.topics.followPipelines();
    this.journey = new Journey({
      onShow: (journey) => this.#onJourney(journey),
      onReplay: (journey) => this.pulses.replay(journey),
    });
    this.messages = new Messages({
      topic: () => this.topic,
      onChoose: (message) => this.journey.open(this.topic, message),
    });
  }

  /** Make buttons and keys work, and follow the topic of the address. */
  start() {
    startTheme(() => {
      this.pulses.repaint();
      this.timeline.repaint();
    });
    startKeys(this.#keys());
    byId("as-ring").addEventListener("click", () => this.#setTree(false));
    byId("as-tree").addEventListener("click", () => this.#setTree(true));
    addEventListener("hashchange", () => this.#follow(topicOfAddress() ?? this.topic));
    this.#follow(topicOfAddress() ?? this.settings.topic);
    setInterval(() => this.isLive && this.timeline.tick(), 1000);
  }

  #keys() {
    const { viewport } = this.ring;
    return {
      r: () => this.ring.focus(),
      t: () => this.#setTree(!this.ring.isTree),
      s: () => byId("scrubber").focus(),
      l: () => this.timeline.goLive(),
      p: () => byId("publish-text").focus(),
      "+": () => viewport.zoom(1.5),
      "-": () => viewport.zoom(1 / 1.5),
      0: () => viewport.fit(),
      Escape: () => this.#closeOne(),
    };
  }

  #closeOne() {
    if (!this.drawer.box.hidden) this.drawer.close();
    else if (this.journey.chosen !== null) this.journey.close();
    else this.timeline.goLive();
  }

  #setTree(isTree) {
    setAttribute(byId("as-ring"), "aria-pressed", !isTree);
    setAttribute(byId("as-tree"), "aria-pressed", isTree);
    this.ring.setTree(isTree);
  }

  // -- topics ---------------------------------------------------------------------------------

  #follow(topic) {
    if (topic === this.topic && this.stream.source) return;
    this.topic = topic;
    this.newest = this.past = null;
    const { ring, pulses, verdict, timeline, messages } = this;
    for (const view of [ring, pulses, verdict, timeline, messages]) view.clear();
    this.journey.close();
    this.drawer.close();
    this.topics.mark(topic);
    setText(byId("topic-name"), topic ?? "…");
    setBanner(byId("trouble"), null);
    this.#noteReplay(null);
    this.stream.follow(topic);
  }

  #onOverview(overview) {
    this.topics.show(overview);
    if (this.topic === null && overview.topics.length) this.#follow(overview.topics[0].topic);
  }

  async #onConnection(state, why) {
    const [word, sentence] = CONNECTION[state];
    setText(byId("connection-text"), word);
    setAttribute(byId("connection"), "data-state", state);
    setBanner(byId("lost"), why ?? sentence);
    this.isLive = state === "open";
    if (state === "open" && this.topic !== null) await this.#load(this.topic);
  }

  async #load(topic) {
    const since = this.newest?.number ?? -1;
    const answers = ["timeline", "messages"].map((path) => get(path, { topic }).catch(() => null));
    const [timeline, messages] = await Promise.all(answers);
    if (topic !== this.topic) return;
    if (timeline) this.timeline.load(timeline.samples, since);
    if (messages) this.messages.add(messages.messages);
  }

  // -- scenes ---------------------------------------------------------------------------------

  #onScene(scene) {
    this.newest = scene;
    this.verdict.show(scene);
    this.timeline.add(scene);
    this.chaos?.offer(scene.nodes);
    if (this.past === null) this.#show(scene);
  }

  #show(scene) {
    setAttribute(byId("stage"), "data-number", scene.number);
    this.ring.show(scene);
    if (this.journey.journey) this.ring.showJourney(this.journey.journey);
    showSupervisor(scene.supervisor);
  }

  /** Show an earlier scene; null for the current one. */
  async #replay(sample) {
    this.past = sample;
    this.#noteReplay(sample && `Replaying ${clock(sample.time)}: ${verdictOf(sample)}`);
    if (sample === null) {
      if (this.newest) this.#show(this.newest);
      return;
    }
    this.pulses.clear();
    try {
      const scene = await get("scene", { topic: this.topic, number: sample.number });
      if (this.past === sample) this.#show(scene);
    } catch (error) {
      if (this.past === sample) this.#noteReplay(error.message);
    }
  }

  #noteReplay(text) {
    setBanner(byId("replaying"), text);
    byId("stage").toggleAttribute("data-past", text !== null);
  }

  #onJourney(journey) {
    this.messages.mark(this.journey.chosen);
    this.ring.showJourney(journey);
  }
}

const topicOfAddress = () => new URLSearchParams(location.hash.slice(1)).get("topic");

const goTo = (topic) => {
  location.hash = new URLSearchParams({ topic });
};

async function start() {
  try {
    new Dashboard(await get("settings")).start();
  } catch (error) {
    setBanner(byId("lost"), error.message);
  }
}

start();
