// One table: how it stands, what happened to it, and what may be done.

import { actionButtons } from "./actions.js";
import { el, setAttr, setText } from "./dom.js";
import { bytes, count, counted, rate, seconds } from "./format.js";
import { retryText } from "./overview.js";
import * as parts from "./table_parts.js";
import { table as askTable } from "./stream.js";

const REST_MS = 1000;
const SLOW_MS = 10000;

export class TablePage {
  constructor(model, name) {
    this.model = model;
    this.name = name;
    this.known = null;
    this.drawn = new Map();
    this.isOpen = true;
    this.isAsking = false;
    this.isStale = true;
    this.askedMs = 0;
    this.pill = el("span", { class: "pill" });
    this.place = el("p", { class: "place" });
    this.actions = el("div", { class: "actions", role: "group", "aria-label": "Actions" });
    this.alert = el("div", { class: "alert", hidden: true });
    this.message = el("div", { class: "empty" }, "Waiting for the daemon…");
    this.sections = el("div", { class: "sections" });
    this.node = el(
      "article",
      { class: "table-page" },
      el("p", { class: "crumbs" }, el("a", { href: "#/" }, "← All tables")),
      el("div", { class: "title" }, el("h1", {}, name), this.pill, this.actions),
      this.place,
      this.alert,
      this.message,
      this.sections,
    );
  }

  opened() {
    this.ask();
  }

  close() {
    this.isOpen = false;
  }

  update(names) {
    const row = this.model.tables.get(this.name);
    if (row) this.drawHead(row);
    if (names.has(this.name)) this.isStale = true;
    if (this.isStale) this.ask();
  }

  drawHead(row) {
    setAttr(this.pill, "data-state", row.state);
    setText(this.pill, row.state);
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
      this.sections.replaceChildren();
      this.drawn.clear();
      this.actions.replaceChildren();
      this.actions.dataset.kinds = "";
      this.alert.hidden = true;
      setText(this.place, "");
    }
    if (this.known) return;
    this.message.hidden = false;
    setText(this.message, error.status ? error.message : "The daemon does not answer; this page tries again by itself.");
  }

  draw() {
    const table = this.known;
    this.message.hidden = true;
    setText(this.place, table.source || "");
    this.drawHead({ ...table, is_maintained: table.maintenance !== null });
    this.drawAlert();
    this.section("now", "Now", [this.figures(), table.last_gap], () => parts.figures(this.figures(), table.last_gap));
    const { history } = table;
    this.section("timeline", "Commits", [history.commits, table.state], () => parts.timeline(history.commits, table));
    this.section("growth", "Growth", [history.growth, table.size], () => parts.growth(history.growth, table.size));
    this.section("sizes", "File sizes", table.file_sizes, () => parts.fileSizes(table.file_sizes));
    this.section("maintenance", "Log maintenance", [table.maintenance, history.jobs], () => parts.maintenance(table, this.model.now()));
    if (table.sink) this.section("sink", "Sink", [table.sink, table.guarantee, table.offset], () => parts.sink(table));
    this.section("schema", "Schema", [history.schema, history.schema_changes], () => parts.schema(history));
    this.section("errors", "Errors met", history.errors, () => parts.errors(history.errors));
    this.section("rows", "Newest change rows", table.rows, () => parts.newestRows(table.rows));
  }

  // Draws a section again only where what it shows has changed: focus and selection stay.
  section(id, title, value, make) {
    const text = JSON.stringify(value);
    let known = this.drawn.get(id);
    if (!known) {
      const body = el("div", { class: "body" });
      this.sections.append(el("section", { class: "card", id: `s-${id}`, "aria-labelledby": `h-${id}` }, el("h2", { id: `h-${id}` }, title), body));
      known = { body, text: null };
      this.drawn.set(id, known);
    }
    if (known.text === text) return;
    known.text = text;
    known.body.replaceChildren(...make().filter(Boolean));
  }

  figures() {
    const t = this.known;
    const size = t.size || {};
    const late = t.lag_versions ? [counted(t.lag_versions, "version", "versions"), t.lag_files === null ? "" : counted(t.lag_files, "file", "files"), t.lag_bytes === null ? "" : bytes(t.lag_bytes)] : [];
    const rows = Object.entries(t.rows_delivered || {});
    const all = rows.reduce((sum, [, number]) => sum + number, 0);
    const words = { insert: "inserted", update_postimage: "updated", delete: "deleted" };
    const split = (values, unit) => Object.entries(words).filter(([kind]) => values && values[kind]).map(([kind, word]) => `${unit(values[kind])} ${word}`).join(", ");
    const figures = [
      ["Head version", count(t.head_version), t.delivered_version === null ? "" : `delivered ${count(t.delivered_version)}`],
      ["Lag", seconds(t.lag_seconds), t.lag_versions === 0 ? "up to date" : late.filter(Boolean).join(", ") || "not known"],
      ["Rate", rate(t.rows_per_second), split(t.rows_per_second_by_change, (r) => (r < 10 ? r.toFixed(2) : count(Math.round(r)))) || "mean of the last minute"],
      ["Delivered since the start", counted(all, "change row", "change rows"), split(t.rows_delivered, count)],
      ["Log since checkpoint", counted(size.commits_since_checkpoint, "commit", "commits"), size.bytes_since_checkpoint === undefined ? "not measured" : `${bytes(size.bytes_since_checkpoint)}; ${size.checkpoint_version === null ? "no checkpoint yet" : `checkpoint ${count(size.checkpoint_version)}`}`],
      ["Retention headroom", seconds(t.retention_headroom_seconds === null ? null : Math.max(0, t.retention_headroom_seconds)), "until what comes next may be cleaned up"],
      ["Table", bytes(size.bytes), size.files === undefined ? "not measured" : `${counted(size.files, "file", "files")}, ${size.rows === null ? "rows not known" : counted(size.rows, "row", "rows")}`],
    ];
    if (!t.sink) return figures.filter(([label]) => !["Lag", "Rate", "Delivered since the start", "Retention headroom"].includes(label));
    if (t.snapshot_progress !== null) figures.push(["Snapshot", `${(t.snapshot_progress * 100).toFixed(1)} %`, "delivered"]);
    if (t.skipped_commits) figures.push(["Skipped", counted(t.skipped_commits, "commit", "commits"), "damaged, recorded and left out"]);
    return figures;
  }

  drawAlert() {
    const t = this.known;
    const error = t.last_error;
    this.alert.hidden = !error;
    if (!error) return;
    const isNow = t.state === "failed" || t.state === "retrying";
    setAttr(this.alert, "data-kind", isNow ? t.state : "past");
    const heads = { failed: "Stopped by an error. Resume it once the cause is fixed.", retrying: "An error that may pass: it is tried again.", past: "The last error; it has passed." };
    const text = JSON.stringify([error, this.alert.dataset.kind]);
    if (this.alert.dataset.text !== text) {
      this.alert.dataset.text = text;
      this.retry = el("span", { class: "retry" });
      this.alert.replaceChildren(el("p", { class: "alert-head" }, heads[this.alert.dataset.kind], " ", this.retry), el("p", { class: "alert-text" }, error.message), el("p", { class: "note" }, el("code", {}, error.code)));
    }
    setText(this.retry, retryText(t, this.model.now()));
  }

  tick() {
    if (this.known) this.drawAlert();
    if (Date.now() - this.askedMs > SLOW_MS) this.ask();
  }

  key() {}
}
