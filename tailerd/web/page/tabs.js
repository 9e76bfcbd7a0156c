// The tabs of a table, each made of what `GET /tables/{name}` says and of what it asks for itself.

import { Cards, empty, figures, grid, note, pairs } from "./cards.js";
import { TimeChart, bars, rangeButtons } from "./charts.js";
import { el, setText } from "./dom.js";
import { NONE, bytes, cost, count, counted, moment, rate, seconds, signed, time, timeOf } from "./format.js";
import * as daemon from "./stream.js";

const DAY = 86400;
const REFRESH_MS = 10000;
const PAGE = 50;
const MODES = { cdc: "change files", vectors: "deletion vectors", rows: "rows compared", files: "data files", snapshot: "snapshot", net: "net", none: "no changes" };
export const modeText = (mode) => MODES[mode] || mode || NONE;
let range = 900;

// Charts over a chosen time, asked for now and then while the tab is open.
class TimedCharts {
  constructor(page, charts, choose) {
    this.page = page;
    this.charts = charts;
    this.askedMs = 0;
    this.node = el("div", {}, rangeButtons(range, (span) => {
      range = span;
      this.ask();
    }), el("div", { class: `charts of${Math.min(3, charts.length)}` }, ...charts.map(([chart]) => chart.node)));
    this.choose = choose;
    this.ask();
  }

  async ask() {
    this.askedMs = Date.now();
    const span = range;
    try {
      const found = await daemon.series(this.page.name, span);
      if (this.isClosed || span !== range) return;
      const now = this.page.model.now() / 1000;
      for (const [chart, ...columns] of this.charts) chart.draw(found.points.map((point) => [point[0], ...columns.map((at) => point[at])]), found.width_seconds, [now - span, now]);
    } catch {
      // The banner, or the page itself, says what is wrong.
    }
  }

  tick() {
    if (Date.now() - this.askedMs > REFRESH_MS && this.page.model.link !== "lost") this.ask();
  }

  close() {
    this.isClosed = true;
    this.charts.forEach(([chart]) => chart.close());
  }
}

class Tab {
  constructor(page) {
    this.page = page;
    this.cards = new Cards();
    this.node = this.cards.node;
  }
}

export class OverviewTab extends Tab {
  constructor(page) {
    super(page);
    const chart = (title, format, ...lines) => new TimeChart({ title, lines, format, height: 132 });
    this.timed = new TimedCharts(page, [
      [chart("Throughput", rate, { label: "rows/s", color: "accent", area: true }), 1],
      [chart("Lag", seconds, { label: "lag", color: "warn", area: true }), 2],
      [chart("Delivery time", seconds, { label: "p50", color: "accent" }, { label: "p99", color: "violet" }), 3, 4],
    ]);
    this.progress = el("div", { class: "snapshot", hidden: true });
    this.node = el("div", {}, this.progress, this.cards.node);
    this.hasCharts = false;
  }

  update(table) {
    const all = nowFigures(table);
    this.cards.card("now", "Now", [all, table.last_gap], () => [figures(all), table.last_gap && el("p", { class: "warning" }, el("strong", {}, "Changes are missing. "), table.last_gap)]);
    if (table.sink && !this.hasCharts) {
      this.hasCharts = true;
      this.cards.lasting("time", "Over time", this.timed.node);
    }
    this.drawProgress(table);
    const { commits, events } = table.history;
    const lately = newest(events).slice(0, 6);
    const link = (tab, words) => note(el("a", { href: this.page.address(tab) }, words));
    this.cards.card("timeline", "Newest commits", [commits.slice(-6), table.state], () => (commits.length ? [commitGrid(commits.slice(-6).reverse(), table, this.page), link("commits", "All commits")] : [empty("None since the daemon started."), link("commits", "Commits before that, from the log")]), 7);
    this.cards.card("lately", "Latest events", lately, () => (lately.length ? [timeline(lately, this.page.model.now()), link("events", "All events")] : [empty("None yet.")]), 5);
  }

  // How far a snapshot is, and when it will be done at the pace so far.
  drawProgress(table) {
    const share = table.snapshot_progress;
    this.progress.hidden = share === null;
    if (share === null) {
      this.begun = null;
      return;
    }
    const now = this.page.model.now();
    if (!this.begun || this.begun[1] > share) this.begun = [now, share];
    const [since, from] = this.begun;
    const left = share > from ? ((1 - share) / (share - from)) * ((now - since) / 1000) : null;
    const percent = (share * 100).toFixed(1);
    if (!this.bar) {
      this.bar = el("progress", { max: "1", "aria-label": "Snapshot delivered" });
      this.words = el("p", {});
      this.progress.append(this.words, this.bar);
    }
    this.bar.value = share;
    setText(this.words, `Snapshot: ${percent} % delivered, ${rate(table.rows_per_second)}${left === null ? "; time left not known yet" : `; about ${seconds(left)} left`}.`);
  }

  tick() {
    this.timed.tick();
  }

  close() {
    this.timed.close();
  }
}

function nowFigures(t) {
  const size = t.size || {};
  const late = t.lag_versions ? [counted(t.lag_versions, "version", "versions"), t.lag_files === null ? "" : counted(t.lag_files, "file", "files"), t.lag_bytes === null ? "" : bytes(t.lag_bytes)] : [];
  const all = Object.values(t.rows_delivered || {}).reduce((sum, number) => sum + number, 0);
  const words = { insert: "inserted", update_postimage: "updated", delete: "deleted" };
  const split = (values, unit) => Object.entries(words).filter(([kind]) => values && values[kind]).map(([kind, word]) => `${unit(values[kind])} ${word}`).join(", ");
  const found = [
    ["Head version", count(t.head_version), t.delivered_version === null ? "nothing delivered yet" : `delivered ${count(t.delivered_version)}`],
    ["Lag", seconds(t.lag_seconds), t.lag_versions === 0 ? "up to date" : late.filter(Boolean).join(", ") || "not known"],
    ["Rate", rate(t.rows_per_second), split(t.rows_per_second_by_change, (r) => (r < 10 ? r.toFixed(2) : count(Math.round(r)))) || "mean of the last minute"],
    ["Delivered since the start", counted(all, "row", "rows"), split(t.rows_delivered, count)],
    ["Log debt", counted(size.commits_since_checkpoint, "commit", "commits"), size.bytes_since_checkpoint === undefined ? "not measured" : `${bytes(size.bytes_since_checkpoint)}; ${size.checkpoint_version === null ? "no checkpoint yet" : `checkpoint ${count(size.checkpoint_version)}`}`],
    ["Retention headroom", seconds(t.retention_headroom_seconds === null ? null : Math.max(0, t.retention_headroom_seconds)), "until the next version may be cleaned up"],
    ["Table", bytes(size.bytes), size.files === undefined ? "not measured" : `${counted(size.files, "file", "files")}, ${size.rows === null ? "rows not known" : counted(size.rows, "row", "rows")}`],
  ];
  if (!t.sink) return found.filter(([label]) => ["Head version", "Log debt", "Table"].includes(label));
  if (t.freshness) found.push(freshness(t.freshness));
  if (t.gaps) found.push(["Gaps", count(t.gaps), "since the start of the daemon"]);
  if (t.skipped_commits) found.push(["Skipped", counted(t.skipped_commits, "commit", "commits"), "damaged, recorded and left out"]);
  return found;
}

function freshness(f) {
  const share = f.known_seconds ? `${(100 * (1 - f.late_seconds / f.known_seconds)).toFixed(3).replace(/\.?0+$/, "")} %` : NONE;
  const left = f.budget_left_seconds < 0 ? `${seconds(-f.budget_left_seconds)} over the budget` : `${seconds(f.budget_left_seconds)} of ${seconds(f.budget_seconds)} left`;
  return ["Fresh", share, `objective ${f.target} % within ${seconds(f.within_seconds)}; of 30 days ${left}`];
}

function delivery(commit, table) {
  if (commit.delivered_ms) {
    const after = commit.timestamp_ms ? (commit.delivered_ms - commit.timestamp_ms) / 1000 : null;
    return after === null || after < 0 ? time(commit.delivered_ms) : `${time(commit.delivered_ms)}, after ${seconds(after)}`;
  }
  if (!table.sink) return NONE;
  if (table.delivered_version !== null && commit.version <= table.delivered_version) return "delivered";
  return "not yet";
}

function inOut(added, removed, unit) {
  if (added === undefined || added === null) return NONE;
  return el("span", { class: "inout" }, el("span", { class: "in" }, `+${unit(added)}`), " ", el("span", { class: "out" }, `−${unit(removed)}`));
}

const versionLink = (version, page) => el("a", { href: `${page.address("changes")}?version=${version}` }, count(version));
const committed = (ms, page) => el("span", { title: moment(ms) }, timeOf(ms, page.model.now()));

function commitGrid(commits, table, page) {
  // Spark does not report how it read a commit: without the log the column would be empty.
  const isReadKnown = commits.some((commit) => commit.mode || commit.changes);
  const heads = [["Version", "n"], ["Committed", ""], ["Operation", ""], ["Files", "n"], ["Bytes", "n"], ...(isReadKnown ? [["Read from", ""]] : []), ["Delivered", ""]];
  const rows = commits.map((commit) => [
    versionLink(commit.version, page),
    committed(commit.timestamp_ms, page),
    commit.operation || "not given",
    inOut(commit.files_added, commit.files_removed, count),
    inOut(commit.bytes_added, commit.bytes_removed, bytes),
    ...(isReadKnown ? [modeText(commit.mode || commit.changes)] : []),
    delivery(commit, table),
  ]);
  return grid(heads, rows, "Commits, newest first");
}

export class CommitsTab extends Tab {
  constructor(page) {
    super(page);
    this.logged = new Map();
    this.state = "Reading the log…";
    this.more = el("button", { type: "button", hidden: true, onclick: () => this.read() }, "Older commits");
    this.words = note();
    this.node = el("div", {}, this.cards.node, el("p", { class: "buttons-row" }, this.more), this.words);
    this.read();
  }

  async read() {
    this.more.disabled = true;
    try {
      const found = await daemon.commits(this.page.name, this.logged.size);
      for (const commit of found.commits) this.logged.set(commit.version, commit);
      this.more.hidden = !found.has_more;
      this.state = found.commits.length || this.logged.size ? `${counted(this.logged.size, "commit", "commits")} read from the log.${found.has_more ? "" : found.notes.length ? ` ${found.notes.join(" ")}` : " These are all that the log has."}` : found.notes.join(" ") || "The log has no commit that can be shown.";
    } catch (error) {
      this.state = error.status ? `Commits before the daemon's start cannot be read from the log: ${error.message}` : "The daemon does not answer.";
    }
    this.more.disabled = false;
    if (this.known) this.update(this.known);
  }

  update(table) {
    this.known = table;
    const all = new Map(this.logged);
    for (const commit of table.history.commits) all.set(commit.version, { ...all.get(commit.version), ...commit });
    const newest = [...all.values()].sort((a, b) => b.version - a.version);
    this.cards.card("commits", "Commits", [newest, table.delivered_version], () => [newest.length ? commitGrid(newest, table, this.page) : empty(this.state)]);
    setText(this.words, newest.length ? this.state : "");
  }
}

// The growth of 30 days: from the log if it shows it, else at the pace watched; null if neither is an hour long.
function inMonth(size, noun, logged) {
  const later = logged && logged.forecast["in 30 days"];
  if (later && noun === "bytes") return later.size_bytes - logged.size_bytes;
  if (later && noun === "files") return later.num_files - logged.num_files;
  const growth = size.growth_per_day && size.growth_per_day[noun];
  const watched = size.growth_watched_seconds;
  return growth === null || growth === undefined || !watched || watched < 3600 ? null : (growth / watched) * DAY * 30;
}

function perDay(size, noun, unit, logged) {
  const growth = size.growth_per_day && size.growth_per_day[noun];
  const watched = size.growth_watched_seconds;
  if (growth === null || growth === undefined || !watched) return NONE;
  const span = watched >= DAY ? "a day" : `in ${seconds(Math.round(watched))}`;
  const month = inMonth(size, noun, logged);
  const ahead = month === null ? "" : `; forecast: ${signed(unit(Math.round(month)), month)} in 30 days`;
  return `${signed(unit(growth), growth)} ${span}${ahead}`;
}

// Commits that stand out, each with the reason; the rules are those of `tailerd growth`.
const REASONS = {
  bytes: (found) => `added ${bytes(found.value)}`,
  files: (found) => `added ${counted(found.value, "file", "files")}`,
  commits: (found) => `began an hour with ${counted(found.value, "commit", "commits")}`,
};

function unusualGrid(found, page) {
  const rows = found.map((each) => [versionLink(each.version, page), committed(Date.parse(each.time), page), each.operation || "not given", el("span", {}, REASONS[each.kind](each), el("span", { class: "unusual" }, ` ${count(each.times_median)}× the median`))]);
  return grid([["Version", "n"], ["Committed", ""], ["Operation", ""], ["Unusual", ""]], rows, "Unusual commits");
}

function costs(size, prices, logged) {
  const now = cost(size.bytes, prices);
  const month = inMonth(size, "bytes", logged);
  if (!now) return "";
  const later = month === null ? "" : `, in 30 days ${cost(size.bytes + month, prices)}`;
  return ` Live data files cost ${now}${later}.`;
}

export class GrowthTab extends Tab {
  constructor(page) {
    super(page);
    this.charts = [["Bytes", 2, bytes], ["Files", 1, count], ["Rows", 3, count]].map(([title, at, format]) => [title, at, format, el("p", { class: "sub" }), new TimeChart({ title, lines: [{ label: title, color: "accent", area: true }], format: (value) => (at === 2 || Number.isInteger(value) ? format(Math.round(value)) : value.toFixed(1)), height: 160, isSize: true, isBytes: at === 2, group: "growth" })]);
    this.remark = note();
    this.logged = null;
    this.words = "Reading the log…";
    this.read();
  }

  async read() {
    this.readMs = Date.now();
    try {
      this.logged = await daemon.growth(this.page.name);
      this.words = `None of the newest ${counted(this.logged.commits, "commit", "commits")} stands out.`;
    } catch (error) {
      this.words = error.status ? error.message : "The daemon does not answer.";
    }
    if (this.known && !this.isClosed) this.update(this.known);
  }

  update(table) {
    const isNews = this.known && this.known.size?.version !== table.size?.version;
    this.known = table;
    if (isNews && Date.now() - this.readMs > REFRESH_MS) this.read();
    const { size, history } = table;
    const { logged } = this;
    if (!size) {
      this.cards.card("growth", "Growth", null, () => [empty("The size of this table is not measured yet, or `table_metrics` is false.")]);
      return;
    }
    if (!this.cards.drawn.has("time")) this.cards.lasting("time", "Size over time", [el("div", { class: "charts of3" }, ...this.charts.map(([, , , words, chart]) => el("div", {}, chart.node, words))), this.remark]);
    for (const [title, at, format, words, chart] of this.charts) {
      chart.draw(history.growth.map((point) => [point[0] / 1000, point[at]]), 0, null);
      setText(words, perDay(size, title.toLowerCase(), format, logged));
    }
    const vectors = `${counted(size.deletion_vectors, "file has", "files have")} a deletion vector, with ${counted(size.deleted_rows, "deleted row", "deleted rows")}.`;
    setText(this.remark, vectors + (inMonth(size, "bytes", logged) === null ? " A forecast needs commits of an hour." : "") + costs(size, this.page.model.prices, logged));
    const left = logged && logged.files_after_optimize;
    this.cards.card("sizes", "File sizes", [table.file_sizes, size.files, left], () => fileSizes(table, left), 7);
    const unusual = logged ? logged.unusual_commits : [];
    this.cards.card("unusual", "Unusual commits", [unusual, this.words], () => [unusual.length ? unusualGrid(unusual, this.page) : empty(this.words)], 5);
  }

  close() {
    this.isClosed = true;
    this.charts.forEach((each) => each[4].close());
  }
}

function fileSizes({ file_sizes: counts, size }, left) {
  const first = counts.findIndex((number) => number > 0);
  if (first < 0) return [empty("No live file.")];
  const last = counts.findLastIndex((number) => number > 0);
  const rows = counts.slice(first, last + 1).map((number, at) => [`up to ${bytes(2 ** (first + at))}`, number, counted(number, "file", "files")]);
  return [bars(rows, "Files by size"), left && note(`The files have ${bytes(size.bytes / size.files)} on average; OPTIMIZE would leave about ${counted(left, "file", "files")}.`)];
}

export class SchemaTab extends Tab {
  update({ history }) {
    const known = history.schema;
    if (!known) {
      this.cards.card("schema", "Columns", null, () => [empty("The daemon reads the schema together with the size of the table.")]);
      return;
    }
    const changes = [...history.schema_changes].reverse();
    const more = known.column_count - known.columns.length;
    this.cards.card("schema", `Columns as of version ${count(known.version)}`, known, () => [grid([["Column", "wide"], ["Type", "wide"]], known.columns.map(([name, kind]) => [name, el("code", {}, kind)]), "Columns"), more > 0 && note(`and ${counted(more, "further column", "further columns")}`)], 7);
    this.cards.card("schema-changes", "Changes", changes, () => [changes.length ? el("ul", { class: "due" }, ...changes.map((change) => el("li", {}, el("strong", {}, `Version ${count(change.version)}, ${moment(change.timestamp_ms)}: `), change.changes.join("; ")))) : empty(`None seen since version ${count(known.version)}.`)], 5);
  }
}

export class MaintenanceTab extends Tab {
  update(table) {
    const kept = table.maintenance;
    if (!kept) {
      this.cards.card("maintenance", "Log maintenance", null, () => [empty("The log of this table is not maintained by this daemon. A section `maintenance` in its configuration switches it on.")]);
      return;
    }
    const jobs = [...table.history.jobs].reverse();
    const due = kept.due.map((job) => el("li", {}, el("strong", {}, job.replaceAll("_", " ")), " is due. ", kept.due_reasons[job] || ""));
    const now = kept.running ? `Running: ${kept.running.replaceAll("_", " ")}.` : kept.assessed_ms ? `Nothing is due at version ${count(kept.assessed_version)}, as of ${time(kept.assessed_ms)}.` : "Not assessed yet.";
    this.cards.card("maintenance", "Log maintenance", [kept.due, kept.due_reasons, kept.refused, now], () => [kept.refused && el("p", { class: "warning" }, el("strong", {}, "Maintenance skipped. "), kept.refused.message), due.length ? el("ul", { class: "due" }, ...due) : el("p", {}, now)]);
    const heads = [["Ended", ""], ["Job", ""], ["Result", ""], ["Took", "n"], ["Written", "n"], ["What and why", "wide"]];
    const rows = jobs.map((job) => [
      el("span", { title: moment(job.ended_ms) }, timeOf(job.ended_ms, this.page.model.now())),
      job.job.replaceAll("_", " "),
      el("span", { class: job.result === "failed" ? "bad" : "" }, job.result.replaceAll("_", " ")),
      seconds(job.duration_seconds),
      job.files ? `${counted(job.files, "file", "files")}, ${bytes(job.bytes)}` : NONE,
      job.message,
    ]);
    this.cards.card("jobs", "Jobs", jobs, () => [jobs.length ? grid(heads, rows, "Maintenance jobs, newest first") : empty("No job has run yet.")]);
  }
}

export class SinksTab extends Tab {
  constructor(page) {
    super(page);
    this.settings = null;
    this.ask();
  }

  async ask() {
    try {
      this.settings = (await daemon.configuration(this.page.name)).sink;
    } catch {
      this.settings = null;
    }
    if (this.known) this.update(this.known);
  }

  update(table) {
    this.known = table;
    if (!table.sink) {
      this.cards.card("sink", "Sink", null, () => [empty("This table has no sink: only its log is maintained.")]);
      return;
    }
    const named = (settings) => Object.entries(settings || {}).filter(([name, value]) => !["kind"].includes(name) && value !== null && !(Array.isArray(value) && !value.length)).map(([name, value]) => [name.replaceAll("_", " "), Array.isArray(value) ? value.join(", ") : typeof value === "object" ? JSON.stringify(value) : String(value)]);
    const offset = Object.entries(table.offset || {}).map(([name, value]) => [name.replaceAll("_", " "), String(value)]);
    const records = Object.entries(table.rows_delivered).map(([kind, number]) => [kind.replaceAll("_", " "), count(number)]);
    const letters = Object.entries(table.dead_letters);
    this.cards.card("sink", `Sink: ${table.sink}`, [table.sink, table.guarantee, this.settings], () => [pairs([["kind", table.sink], ["guarantee", table.guarantee || NONE], ...named(this.settings)])], 7);
    this.cards.card("records", "Rows delivered", [records, table.last_progress_ms], () => [records.length ? pairs([...records, ["last saved", moment(table.last_progress_ms)]]) : empty("None since the start of the daemon.")], 5);
    this.cards.card("dead-letters", "Dead letters", letters, () => [letters.length ? pairs(letters.map(([topic, number]) => [topic, counted(number, "record", "records")])) : empty("None since the start of the daemon.")], 7);
    this.cards.card("offset", "Saved offset", offset, () => [offset.length ? pairs(offset) : empty("None saved yet.")], 5);
  }
}

// Records of a timeline, newest first.
export const newest = (records) => [...records].sort((one, other) => other.last_ms - one.last_ms);

export function timeline(records, nowMs, hasTables = false) {
  return el(
    "ol",
    { class: "timeline" },
    ...records.map((record) =>
      el(
        "li",
        { "data-level": record.level },
        el("time", { title: moment(record.last_ms) }, timeOf(record.last_ms, nowMs)),
        el("span", { class: "kind" }, record.kind),
        el("span", { class: "words" }, hasTables && record.table ? el("a", { href: `#/tables/${encodeURIComponent(record.table)}/events` }, record.table) : null, hasTables && record.table ? ": " : null, record.text, record.count > 1 ? el("span", { class: "times" }, ` ${count(record.count)} times since ${timeOf(record.at_ms, nowMs)}`) : null),
      ),
    ),
  );
}

export class EventsTab extends Tab {
  constructor(page) {
    super(page);
    this.least = "all";
    this.choice = el("div", { class: "ranges", role: "group", "aria-label": "Which events" });
    for (const [key, label] of [["all", "All"], ["wrong", "Warnings and errors"]]) this.choice.append(el("button", { type: "button", "aria-pressed": String(key === this.least), onclick: (event) => this.choose(key, event.target) }, label));
    this.node = el("div", {}, this.choice, this.cards.node);
  }

  choose(key, button) {
    this.least = key;
    for (const each of this.choice.children) each.setAttribute("aria-pressed", String(each === button));
    if (this.known) this.update(this.known);
  }

  update(table) {
    this.known = table;
    const all = newest(table.history.events).filter((record) => this.least === "all" || record.level !== "info");
    this.cards.card("events", "Events", [all, this.least], () => [all.length ? timeline(all, this.page.model.now()) : empty(this.least === "all" ? "Nothing has happened yet." : "No warnings or errors are recorded."), note("Events stay after a restart of the daemon. A repeated event appears once, with its count.")]);
  }
}

// Settings as they are written in a file, without secrets.
export function settingsText(value, indent = "") {
  const isMap = (each) => typeof each === "object" && !Array.isArray(each);
  const hasValue = (each) => each !== null && (typeof each !== "object" || Object.keys(each).length > 0);
  return Object.entries(value).filter(([, each]) => hasValue(each)).map(([name, each]) => {
    if (isMap(each)) return `${indent}${name}:\n${settingsText(each, `${indent}  `)}`;
    return `${indent}${name}: ${typeof each === "string" && /^[\w./-]+$/.test(each) ? each : JSON.stringify(each)}\n`;
  }).join("");
}

export class ConfigurationTab extends Tab {
  constructor(page) {
    super(page);
    this.state = "Asking the daemon…";
    this.ask();
  }

  async ask() {
    try {
      const found = await daemon.configuration(this.page.name);
      this.cards.card("configuration", "Configuration", found, () => [el("pre", { class: "settings", tabindex: "0" }, settingsText(found)), note("The settings in use, with their defaults, and without secrets and empty fields. ", el("a", { href: "/docs/configuration" }, "Every field"))]);
    } catch (error) {
      this.cards.card("configuration", "Configuration", String(error), () => [empty(error.status ? error.message : "The daemon does not answer.")]);
    }
  }

  update(table) {
    const can = Object.entries(table.capabilities || {});
    if (can.length) this.cards.card("capabilities", `Capabilities of ${table.format} tables`, can, () => [pairs(can.map(([name, value]) => [name.replaceAll("_", " "), value === true ? "yes" : value === false ? "no" : String(value).replaceAll("_", " ")]))]);
  }
}
