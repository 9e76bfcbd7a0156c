// The daemon itself: what it is, how it does, what is wrong with it, and how it is configured.

import { Cards, empty, note, pairs } from "./cards.js";
import { el, setText } from "./dom.js";
import { bytes, count, moment, seconds } from "./format.js";
import { daemon as askDaemon } from "./stream.js";
import { newest, settingsText, timeline } from "./tabs.js";

const REFRESH_MS = 5000;

function uptime(startedMs, nowMs) {
  const past = Math.max(0, Math.floor((nowMs - startedMs) / 1000));
  const parts = [[Math.floor(past / 86400), "d"], [Math.floor(past / 3600) % 24, "h"], [Math.floor(past / 60) % 60, "min"], [past % 60, "s"]];
  const first = parts.findIndex(([number]) => number > 0);
  return parts.slice(first < 0 ? 3 : first).slice(0, 2).map(([number, unit]) => `${number} ${unit}`).join(" ");
}

export class DaemonPage {
  constructor(model) {
    this.model = model;
    this.title = "Daemon";
    this.left = new Cards();
    this.right = new Cards();
    this.message = el("div", { class: "empty" }, "Asking the daemon…");
    this.node = el("article", { class: "daemon-page" }, el("div", { class: "title" }, el("h1", {}, "Daemon"), el("nav", { class: "actions", "aria-label": "Further pages" }, el("a", { href: "/docs" }, "Documentation"), el("a", { href: "/metrics" }, "/metrics"), el("a", { href: "/status" }, "/status"))), this.message, el("div", { class: "columns" }, this.left.node, this.right.node));
  }

  opened() {
    this.ask();
  }

  close() {
    this.isClosed = true;
  }

  reconnected() {
    this.ask();
  }

  update() {}

  async ask() {
    this.askedMs = Date.now();
    try {
      const found = await askDaemon();
      if (!this.isClosed) this.draw(found);
    } catch (error) {
      setText(this.message, error.status ? error.message : "The daemon does not answer; this page retries by itself.");
    }
  }

  draw(found) {
    this.message.hidden = true;
    const now = this.model.now();
    const facts = [
      ["version", found.version],
      ["name", found.name],
      ["running for", `${uptime(found.started_ms, now)}, since ${moment(found.started_ms)}`],
      ["process", `${found.pid} on ${found.host}`],
      ["memory", `${bytes(found.memory_bytes)} resident; ${bytes(found.budget_used_bytes)} of ${bytes(found.budget_bytes)} of \`memory\` in use`.replaceAll("`", "")],
      ["threads", count(found.threads)],
      ["open files", count(found.open_files)],
      ["open pages", count(found.pages)],
      ["Python", found.python],
      ["state", found.state],
    ];
    const { alerts } = found;
    this.left.card("alerts", "Alerts", alerts, () => [alerts.length ? el("ul", { class: "alerts" }, ...alerts.map((alert) => el("li", { "data-level": alert.severity }, el("strong", {}, alert.name), " ", alert.table ? el("a", { href: `#/tables/${encodeURIComponent(alert.table)}` }, alert.table) : null, " ", el("span", { class: "words" }, alert.text), el("span", { class: "times" }, alert.is_pending ? ` pending for ${seconds(alert.for_seconds)}` : "")))) : el("p", {}, "None is firing."), note("The daemon evaluates the rules of config/alerts.yaml for itself; Prometheus does so separately.")]);
    this.right.card("facts", "Process", facts, () => [pairs(facts)]);
    this.left.card("daemon-events", "Events", found.events, () => [found.events.length ? timeline(newest(found.events), now, true) : empty("Nothing has happened yet."), note("Events of the daemon, and warnings and errors of its tables, also from before a restart.")]);
    this.right.card("settings", "Configuration", found.configuration, () => [el("pre", { class: "settings", tabindex: "0" }, settingsText(found.configuration)), note("The settings in use, with their defaults and without secrets. Each table shows its own.")]);
  }

  tick() {
    if (Date.now() - this.askedMs > REFRESH_MS && this.model.link !== "lost") this.ask();
  }

  key() {}
}
