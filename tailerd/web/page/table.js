// One table: what it is, how it stands, and a tab for each question. Tabs have addresses.

import { actionButtons } from "./actions.js";
import { el, setAttr, setText } from "./dom.js";
import { ChangesTab } from "./explorer.js";
import { seconds, timeOf } from "./format.js";
import { retryText } from "./fleet.js";
import { table as askTable } from "./stream.js";
import { CommitsTab, ConfigurationTab, EventsTab, GrowthTab, MaintenanceTab, OverviewTab, SchemaTab, SinksTab } from "./tabs.js";

const REST_MS = 1000;
const SLOW_MS = 10000;
const TABS = {
  overview: ["Overview", OverviewTab],
  changes: ["Changes", ChangesTab],
  commits: ["Commits", CommitsTab],
  growth: ["Growth", GrowthTab],
  schema: ["Schema", SchemaTab],
  maintenance: ["Maintenance", MaintenanceTab],
  sinks: ["Sinks", SinksTab],
  events: ["Events", EventsTab],
  configuration: ["Configuration", ConfigurationTab],
};

export class TablePage {
  constructor(model, name, tab, path) {
    this.model = model;
    this.name = name;
    this.known = null;
    this.isOpen = true;
    this.isAsking = false;
    this.isStale = true;
    this.askedMs = 0;
    this.pill = el("span", { class: "pill" });
    this.place = el("p", { class: "place" });
    this.actions = el("div", { class: "actions", role: "group", "aria-label": "Actions" });
    this.alert = el("div", { class: "alert", hidden: true });
    this.message = el("div", { class: "empty" }, "Asking the daemon…");
    this.tabs = new Map(Object.entries(TABS).map(([key, [label]]) => [key, el("a", { href: this.address(key) }, label)]));
    this.body = el("div", { class: "tab-body" });
    this.node = el(
      "article",
      { class: "table-page" },
      el("div", { class: "title" }, el("a", { class: "up", href: "#/", "aria-label": "All tables" }, "Tables"), el("span", { class: "slash", "aria-hidden": "true" }, "/"), el("h1", {}, name), this.pill, this.actions),
      this.place,
      el("nav", { class: "tabs", "aria-label": "Table" }, ...this.tabs.values()),
      this.alert,
      this.message,
      this.body,
    );
    this.show(tab, path);
  }

  address(key) {
    return `#/tables/${encodeURIComponent(this.name)}${key === "overview" ? "" : `/${key}`}`;
  }

  // Opens a tab; one that is not known is the first.
  show(tab, path) {
    const key = tab in TABS ? tab : "overview";
    if (this.tab && this.shown === key) {
      if (this.tab.moved) this.tab.moved(path);
      return;
    }
    if (this.tab && this.tab.close) this.tab.close();
    this.shown = key;
    this.title = key === "overview" ? this.name : `${this.name} ${key}`;
    for (const [each, link] of this.tabs) setAttr(link, "aria-current", each === key ? "page" : null);
    this.tab = new TABS[key][1](this, path);
    this.body.replaceChildren(this.tab.node);
    if (this.known) this.tab.update(this.known);
    this.reveal();
  }

  opened() {
    this.ask();
    this.reveal();
  }

  // On a narrow page not all tabs fit.
  reveal() {
    const link = this.tabs.get(this.shown);
    link.parentElement.scrollLeft = Math.max(0, link.offsetLeft - 40);
  }

  close() {
    this.isOpen = false;
    if (this.tab.close) this.tab.close();
  }

  reconnected() {
    this.ask();
  }

  update(names) {
    const row = this.model.tables.get(this.name);
    if (row) this.drawHead(row);
    if (names.has(this.name)) this.isStale = true;
    if (this.isStale) this.ask();
  }

  drawHead(row) {
    setAttr(this.pill, "data-state", row.state);
    setText(this.pill, row.state === "starting" && row.activity ? row.activity : row.state);
    const kinds = actionButtons(this.name, row);
    const wanted = kinds.map((button) => button.dataset.action).join();
    if (this.actions.dataset.kinds !== wanted) {
      this.actions.dataset.kinds = wanted;
      this.actions.replaceChildren(...kinds);
    }
  }

  async ask() {
    const wait = this.askedMs + REST_MS - Date.now();
    if (this.isAsking || !this.isOpen) return;
    if (wait > 0) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.ask(), wait);
      return;
    }
    this.isAsking = true;
    this.isStale = false;
    this.askedMs = Date.now();
    try {
      this.known = await askTable(this.name);
      if (this.isOpen) this.draw();
    } catch (error) {
      this.failed(error);
    }
    this.isAsking = false;
    if (this.isStale) this.ask();
  }

  failed(error) {
    if (error.status === 404) {
      this.known = null;
      this.body.hidden = true;
      this.actions.replaceChildren();
      this.actions.dataset.kinds = "";
      this.alert.hidden = true;
      setText(this.pill, "");
      setText(this.place, "");
    }
    if (this.known) return;
    this.message.hidden = false;
    setText(this.message, error.status ? error.message : "The daemon does not answer; this page retries by itself.");
  }

  draw() {
    const table = this.known;
    this.message.hidden = true;
    this.body.hidden = false;
    setText(this.place, [table.source, table.format, table.engine, table.paused_by && `paused by ${table.paused_by}`].filter(Boolean).join(" · "));
    this.drawHead({ ...table, is_maintained: table.maintenance !== null });
    this.drawAlert();
    this.tab.update(table);
  }

  drawAlert() {
    const t = this.known;
    const error = t.last_error;
    const kind = t.state === "failed" || t.state === "retrying" ? t.state : "past";
    // What has passed is in the timeline; only what is wrong now stands on every tab.
    this.alert.hidden = !error || kind === "past";
    if (this.alert.hidden) return;
    setAttr(this.alert, "data-kind", kind);
    const heads = { failed: "Stopped by an error. The text says how to continue.", retrying: "A temporary error; the pipeline retries." };
    const text = JSON.stringify([error, kind, t.last_progress_ms]);
    if (this.alert.dataset.text !== text) {
      this.alert.dataset.text = text;
      this.retry = el("span", { class: "retry" });
      this.since = el("span", {});
      this.alert.replaceChildren(el("p", { class: "alert-head" }, heads[kind], " ", this.retry), el("p", { class: "alert-text" }, error.message), el("p", { class: "note" }, this.since, " · ", el("code", {}, error.code), " · ", el("a", { href: `/docs/errors#${error.code}` }, "About this error")));
    }
    const now = this.model.now();
    setText(this.retry, retryText(t, now));
    const success = t.last_progress_ms === null ? "no rows delivered since the daemon started" : `last rows delivered ${timeOf(t.last_progress_ms, now)}`;
    setText(this.since, `Failing for ${seconds((now - t.failing_since_ms) / 1000)}, since ${timeOf(t.failing_since_ms, now)}; ${success}`);
  }

  tick() {
    if (this.known) this.drawAlert();
    if (this.tab.tick) this.tab.tick();
    if (Date.now() - this.askedMs > SLOW_MS && this.model.link !== "lost") this.ask();
  }

  key(event, isTyping) {
    if (isTyping) return;
    const keys = [...this.tabs.keys()];
    const number = Number(event.key);
    let to = number >= 1 && number <= keys.length ? keys[number - 1] : null;
    const at = keys.indexOf(this.shown);
    if (event.key === "[") to = keys[Math.max(0, at - 1)];
    if (event.key === "]") to = keys[Math.min(keys.length - 1, at + 1)];
    if (to) location.hash = this.address(to);
  }
}
