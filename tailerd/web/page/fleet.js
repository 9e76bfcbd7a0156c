// All tables: how they do together, and each in a line. Only lines in sight exist, so that a
// thousand cost as much as twenty.

import { RANGES, TimeChart, rangeButtons, sparkline } from "./charts.js";
import { el, setAttr, setText } from "./dom.js";
import { NONE, bytes, cost, count, counted, rate, seconds, signed } from "./format.js";
import { series } from "./stream.js";

const RANK = { failed: 0, retrying: 1, starting: 2, paused: 3, stopped: 4, running: 5 };
const BEYOND = 8;
const REFRESH_MS = 10000;
const GIB = 1024 ** 3;
const LATE_SECONDS = 60;

// Key, heading, value to sort by, class; descending first where more is worse.
const COLUMNS = [
  ["name", "Table", null, "c-name"],
  ["state", "State", (row) => RANK[row.state] ?? 9, "c-state"],
  ["lag", "Lag", (row) => -Math.round(row.lag_seconds ?? -1), "c-lag n"],
  ["rate", "Rows/s", (row) => -Math.round(row.rows_per_second ?? -1), "c-rate n"],
  ["trend", "5 min", null, "c-trend"],
  ["version", "Delivered", (row) => -(row.delivered_version ?? -1), "c-version n"],
  ["debt", "Log commits", (row) => -(row.commits_since_checkpoint ?? -1), "c-debt n"],
  ["size", "Size", (row) => -(row.bytes ?? -1), "c-size n"],
  ["forecast", "30 days", (row) => -(row.forecast_bytes ?? -Infinity), "c-forecast n"],
  ["sink", "Sink", null, "c-sink"],
];
const GROUPS = {
  none: ["No groups", null],
  state: ["State", (name, row) => row.state],
  sink: ["Sink", (name, row) => row.sink || "no sink"],
  format: ["Format", (name, row) => row.format || "not opened yet"],
  engine: ["Engine", (name, row) => row.engine],
  prefix: ["Name prefix", (name) => /^[^._-]+/.exec(name)?.[0] ?? name],
};

export function retryText(row, nowMs) {
  if (row.state !== "retrying" || !row.next_retry_ms) return "";
  const left = Math.ceil((row.next_retry_ms - nowMs) / 1000);
  const attempt = `Attempt ${count(row.attempt + 1)}`;
  return left > 0 ? `${attempt} in ${seconds(left)}` : `${attempt} now`;
}

// What needs an operator: [severity, words]; null where nothing does.
export function problemOf(row, nowMs) {
  if (row.state === "failed") return ["failed", row.last_error ? row.last_error.message : "Failed."];
  if (row.state === "retrying") return ["retrying", `${retryText(row, nowMs)}: ${row.last_error ? row.last_error.message : ""}`];
  if (row.gaps) return ["retrying", `${counted(row.gaps, "gap", "gaps")}: changes are missing.`];
  if (row.skipped_commits) return ["retrying", `${counted(row.skipped_commits, "commit", "commits")} skipped.`];
  if (row.dead_letters) return ["retrying", `${counted(row.dead_letters, "record", "records")} in dead letters.`];
  return null;
}

class RowView {
  constructor() {
    this.link = el("a", { class: "row-link" });
    this.error = el("span", { class: "row-error" });
    this.state = el("span", { class: "pill" });
    this.spark = sparkline();
    this.cells = new Map();
    this.node = el("div", { role: "row", class: "row" });
    for (const [key, label, , kind] of COLUMNS) {
      const cell = el("div", { role: "cell", class: `cell ${kind}`, "data-label": label });
      if (key === "name") cell.append(this.link, this.error);
      else if (key === "state") cell.append(this.state);
      else if (key === "trend") cell.append(this.spark.node);
      this.cells.set(key, cell);
      this.node.append(cell);
    }
  }

  update(name, row, rates, nowMs) {
    setText(this.link, name);
    setAttr(this.link, "href", `#/tables/${encodeURIComponent(name)}`);
    setAttr(this.link, "title", name.length > 24 ? name : null);
    setAttr(this.state, "data-state", row.state);
    this.tick(row, nowMs);
    const text = (key, value) => setText(this.cells.get(key), value);
    const lag = this.cells.get("lag");
    setText(lag, row.lag_seconds === null ? NONE : row.lag_versions === 0 ? "0 s" : seconds(row.lag_seconds));
    setAttr(lag, "title", row.lag_versions === null ? "not known" : row.lag_versions === 0 ? "up to date" : counted(row.lag_versions, "version", "versions"));
    setAttr(lag, "data-late", row.lag_seconds > LATE_SECONDS ? "" : null);
    text("rate", row.sink ? rate(row.rows_per_second).replace(" rows/s", "") : NONE);
    this.spark.draw(rates);
    const version = this.cells.get("version");
    setText(version, row.delivered_version === null ? (row.sink ? NONE : count(row.head_version)) : count(row.delivered_version));
    setAttr(version, "title", row.head_version === null ? "head not known" : `head ${count(row.head_version)}`);
    text("debt", count(row.commits_since_checkpoint));
    setAttr(this.cells.get("debt"), "title", row.bytes_since_checkpoint === null ? null : `${counted(row.commits_since_checkpoint, "commit", "commits")}, ${bytes(row.bytes_since_checkpoint)} since the checkpoint`);
    text("size", bytes(row.bytes));
    text("forecast", row.forecast_bytes === null ? NONE : signed(bytes(row.forecast_bytes), row.forecast_bytes));
    text("sink", row.sink || "log only");
  }

  tick(row, nowMs) {
    const progress = row.snapshot_progress;
    const stage = row.state === "starting" && row.activity ? row.activity : row.state;
    setText(this.state, progress === null ? stage : `snapshot ${Math.floor(progress * 100)} %`);
    const problem = problemOf(row, nowMs);
    setAttr(this.node, "data-bad", problem ? problem[0] : null);
    setText(this.error, problem ? problem[1] : "");
    setAttr(this.error, "title", problem ? problem[1] : null);
  }
}

// What the address says: #/?q=…&state=…&sort=…&group=…&range=…
function readAddress(path) {
  const given = new URLSearchParams(path.split("?")[1] || "");
  const sort = given.get("sort") || "state";
  const range = Number(given.get("range"));
  return {
    q: given.get("q") || "",
    state: given.get("state") || "",
    sort: COLUMNS.some(([key]) => key === sort.replace("-", "")) ? sort : "state",
    group: given.get("group") in GROUPS ? given.get("group") : "none",
    range: RANGES.some(([span]) => span === range) ? range : 900,
  };
}

let remembered = { scroll: 0, path: "/" };

export class FleetPage {
  constructor(model, path) {
    this.model = model;
    this.title = "";
    this.at = readAddress(path === "/" ? remembered.path : path);
    this.scroll = remembered.scroll;
    this.views = new Map();
    this.free = [];
    this.items = [];
    this.askedMs = 0;
    this.tiles = this.makeTiles();
    this.filter = el("input", { type: "search", id: "filter", placeholder: "Filter tables ( / )", autocomplete: "off", spellcheck: "false", "aria-label": "Filter by name" });
    this.filter.value = this.at.q;
    this.states = el("div", { class: "chips", role: "group", "aria-label": "Show one state" });
    this.group = el("select", { id: "group", "aria-label": "Group by" }, ...Object.entries(GROUPS).map(([key, [label]]) => el("option", { value: key, selected: key === this.at.group }, key === "none" ? label : `By ${label.toLowerCase()}`)));
    this.sorting = el("select", { id: "sort", class: "narrow-only", "aria-label": "Sort by" }, ...COLUMNS.filter(([key]) => key !== "trend").map(([key, label]) => el("option", { value: key, selected: key === this.at.sort.replace("-", "") }, `Sort: ${label.toLowerCase()}`)));
    this.chips = new Map();
    this.rows = el("div", { class: "rows", role: "rowgroup" });
    this.problems = el("ul", { class: "problems", "aria-label": "Problems", hidden: true });
    this.empty = el("div", { class: "empty", hidden: true });
    this.heads = new Map();
    this.table = el("div", { class: "grid", role: "table", "aria-label": "Tables" }, el("div", { role: "rowgroup", class: "head-group" }, el("div", { role: "row", class: "row-head" }, ...COLUMNS.map((column) => this.head(column)))), this.rows);
    this.node = el(
      "section",
      { class: "fleet", "aria-label": "Tables" },
      el("div", { class: "fleet-head" }, el("h1", {}, "Tables"), this.count = el("p", { class: "sub", "aria-live": "polite" }), rangeButtons(this.at.range, (range) => this.change({ range }))),
      this.problems,
      this.tiles.node,
      el("div", { class: "tools" }, this.filter, this.states, this.sorting, this.group),
      this.table,
      this.empty,
    );
    this.filter.addEventListener("input", () => this.change({ q: this.filter.value }));
    this.group.addEventListener("change", () => this.change({ group: this.group.value }));
    this.sorting.addEventListener("change", () => this.change({ sort: this.sorting.value }));
    this.onScroll = () => this.draw(null);
  }

  head([key, label, , kind]) {
    const button = key === "trend" ? label : el("button", { type: "button", class: "sort", onclick: () => this.change({ sort: this.at.sort === key ? `-${key}` : key }) }, label);
    const head = el("div", { role: "columnheader", class: kind }, button);
    this.heads.set(key, head);
    return head;
  }

  makeTiles() {
    const chart = (title, color, format) => new TimeChart({ title, lines: [{ label: title, color, area: true }], format, height: 56, isBare: true, group: "fleet" });
    const charts = [chart("Throughput", "accent", rate), chart("Worst lag", "warn", seconds), chart("p99 delivery time", "violet", seconds)];
    const figure = (title, id) => {
      const value = el("dd", { class: "tile-value", id });
      const more = el("dd", { class: "tile-more" });
      return { node: el("dl", { class: "tile" }, el("dt", {}, title), value, more), value, more };
    };
    const figures = { problems: figure("Problems", "tile-problems"), debt: figure("Log debt", "tile-debt"), forecast: figure("30-day forecast", "tile-forecast") };
    const node = el("div", { class: "tiles" }, ...charts.map((each) => el("div", { class: "tile" }, each.node)), ...Object.values(figures).map((each) => each.node));
    return { node, charts, figures };
  }

  opened() {
    window.addEventListener("scroll", this.onScroll, { passive: true });
    window.addEventListener("resize", this.onScroll);
    this.ask();
  }

  close() {
    remembered.scroll = window.scrollY;
    window.removeEventListener("scroll", this.onScroll);
    window.removeEventListener("resize", this.onScroll);
    this.tiles.charts.forEach((chart) => chart.close());
    this.isClosed = true;
  }

  // The selection is in the address, so that a link to it can be shared.
  change(what) {
    Object.assign(this.at, what);
    const { q, state, sort, group, range } = this.at;
    const given = new URLSearchParams({ ...(q && { q }), ...(state && { state }), ...(sort !== "state" && { sort }), ...(group !== "none" && { group }), ...(range !== 900 && { range }) });
    remembered.path = given.size ? `/?${given}` : "/";
    history.replaceState(null, "", `#${remembered.path}`);
    if (what.range) this.ask();
    this.sort();
    this.draw(null);
  }

  async ask() {
    this.askedMs = Date.now();
    try {
      const found = await series(null, this.at.range);
      if (this.isClosed) return;
      const now = this.model.now() / 1000;
      const column = (at) => found.points.map((point) => [point[0], point[at]]);
      [1, 2, 4].forEach((at, number) => this.tiles.charts[number].draw(column(at), found.width_seconds, [now - this.at.range, now]));
    } catch {
      // The banner says that the connection is lost.
    }
  }

  reconnected() {
    this.ask();
  }

  update(names) {
    this.drawFigures();
    this.sort();
    this.draw(names);
  }

  drawFigures() {
    const { tables } = this.model;
    const { problems, debt, forecast } = this.tiles.figures;
    let [bad, commits, owed, month, stored, known, due, worst, late] = [0, 0, 0, 0, 0, 0, 0, null, 0];
    const found = this.model.problems.map((problem) => ["failed", null, `${problem.part}: ${problem.error.message}`]);
    for (const [name, row] of tables) {
      const problem = problemOf(row, this.model.now());
      if (problem) {
        bad += 1;
        found.push([problem[0], name, problem[1]]);
      }
      commits += row.commits_since_checkpoint || 0;
      owed += row.bytes_since_checkpoint || 0;
      due += row.due ? 1 : 0;
      if (row.lag_seconds > LATE_SECONDS) late += 1;
      if (row.commits_since_checkpoint && (!worst || row.commits_since_checkpoint > worst[1])) worst = [name, row.commits_since_checkpoint];
      stored += row.bytes || 0;
      if (row.forecast_bytes !== null) {
        month += row.forecast_bytes;
        known += 1;
      }
    }
    const all = bad + this.model.problems.length;
    const { isLoaded } = this.model;
    setText(this.count, isLoaded ? [counted(tables.size, "table", "tables"), late ? `${count(late)} more than a minute late` : ""].filter(Boolean).join(" · ") : "");
    setText(problems.value, isLoaded ? count(all) : NONE);
    setAttr(problems.node, "data-bad", all ? "" : null);
    setText(problems.more, !isLoaded ? "" : all ? "listed above" : tables.size ? "no pipeline has a problem" : "");
    setText(debt.value, isLoaded ? counted(commits, "commit", "commits") : NONE);
    setText(debt.more, worst ? `${bytes(owed)}; most: ${worst[0]}${due ? `; due: ${counted(due, "table", "tables")}` : ""}` : "");
    setText(forecast.value, known ? signed(bytes(month), month) : NONE);
    const ahead = known ? (known < tables.size ? `of ${count(known)} of ${counted(tables.size, "table", "tables")}` : `${(month / GIB / 30).toFixed(1)} GiB a day`) : "available after 1 hour";
    setText(forecast.more, [ahead, cost(stored, this.model.prices)].filter(Boolean).join("; now "));
    this.drawProblems(found);
  }

  drawProblems(found) {
    found.sort((a, b) => RANK[a[0]] - RANK[b[0]]);
    const shown = found.slice(0, 4);
    const more = found.length - shown.length;
    while (this.problems.childElementCount > shown.length + (more ? 1 : 0)) this.problems.lastChild.remove();
    shown.forEach(([kind, name, words], at) => {
      let item = this.problems.children[at];
      if (!item || item.dataset.name !== String(name)) {
        const made = el("li", { "data-name": String(name) }, name === null ? null : el("a", { href: `#/tables/${encodeURIComponent(name)}` }, name), el("span", { class: "words" }));
        if (item) item.replaceWith(made);
        else this.problems.append(made);
        item = made;
      }
      setAttr(item, "data-kind", kind);
      setText(item.lastChild, words);
      setAttr(item.lastChild, "title", words);
    });
    if (more) {
      if (this.problems.childElementCount === shown.length) this.problems.append(el("li", { class: "more" }));
      setText(this.problems.lastChild, `and ${count(more)} more; sorted by state they come first below`);
    }
    this.problems.hidden = !found.length;
  }

  sort() {
    const { tables } = this.model;
    const wanted = this.at.q.toLowerCase();
    const counts = new Map();
    const names = [];
    for (const [name, row] of tables) {
      counts.set(row.state, (counts.get(row.state) || 0) + 1);
      if (name.toLowerCase().includes(wanted) && (!this.at.state || row.state === this.at.state)) names.push(name);
    }
    const key = this.at.sort.replace("-", "");
    const isBack = this.at.sort.startsWith("-");
    const [, , figure] = COLUMNS.find(([each]) => each === key);
    const text = (name) => (key === "sink" ? tables.get(name).sink || "" : name);
    const byName = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const compare = figure ? (a, b) => figure(tables.get(a)) - figure(tables.get(b)) : (a, b) => byName(text(a), text(b));
    names.sort((a, b) => (isBack ? -compare(a, b) : compare(a, b)) || byName(a, b));
    for (const [each, head] of this.heads) setAttr(head, "aria-sort", each === key ? (isBack ? "descending" : "ascending") : null);
    this.items = this.grouped(names);
    this.drawChips(counts);
    this.explain(names.length);
  }

  // Lines in order: names of tables, and headings of groups.
  grouped(names) {
    const [, of] = GROUPS[this.at.group];
    if (!of) return names.map((name) => ({ name }));
    const groups = new Map();
    for (const name of names) {
      const label = of(name, this.model.tables.get(name));
      if (!groups.has(label)) groups.set(label, []);
      groups.get(label).push(name);
    }
    return [...groups].flatMap(([label, members]) => [{ label, members }, ...members.map((name) => ({ name }))]);
  }

  drawChips(counts) {
    const shown = Object.keys(RANK).filter((state) => counts.get(state) || this.at.state === state);
    if (shown.join() !== [...this.chips.keys()].join()) {
      this.chips = new Map(shown.map((state) => [state, el("button", { type: "button", class: "chip", "data-state": state, onclick: () => this.change({ state: this.at.state === state ? "" : state }) })]));
      this.states.replaceChildren(...this.chips.values());
    }
    for (const [state, chip] of this.chips) {
      setText(chip, `${count(counts.get(state) || 0)} ${state}`);
      setAttr(chip, "aria-pressed", this.at.state === state);
    }
  }

  explain(shown) {
    this.empty.hidden = shown > 0;
    this.table.hidden = shown === 0;
    if (shown) return;
    const engines = Object.keys(this.model.engines);
    if (!this.model.isLoaded) setText(this.empty, this.model.link === "lost" ? "The daemon does not answer. This page retries by itself." : "Connecting to the daemon…");
    else if (this.model.tables.size) setText(this.empty, "No table fits the filter.");
    else if (engines.length) setText(this.empty, `Starting ${engines.join(", ")}…`);
    else setText(this.empty, "This daemon has no tables. Name some below `tables` in its configuration, or a pattern below `discover`; they appear here by themselves.");
  }

  height() {
    return matchMedia("(max-width: 720px)").matches ? 78 : 34;
  }

  draw(changed) {
    const height = this.height();
    const total = `${this.items.length * height}px`;
    if (this.rows.style.height !== total) this.rows.style.height = total;
    setAttr(this.table, "aria-rowcount", this.items.length + 1);
    const top = window.scrollY - this.rows.offsetTop - this.table.offsetTop;
    const first = Math.max(0, Math.floor(top / height) - BEYOND);
    const last = Math.min(this.items.length, Math.ceil((top + window.innerHeight) / height) + BEYOND);
    const wanted = new Set(this.items.slice(first, last).map((item) => item.name ?? `\n${item.label}`));
    for (const [key, view] of this.views) {
      if (!wanted.has(key) && (!view.node.contains(document.activeElement) || !this.model.tables.has(key))) {
        view.node.remove();
        this.views.delete(key);
        if (view instanceof RowView) this.free.push(view);
      }
    }
    let before = this.rows.firstChild;
    for (let at = first; at < last; at += 1) {
      const view = this.viewOf(this.items[at], changed);
      const place = `translateY(${at * height}px)`;
      if (view.node.style.transform !== place) view.node.style.transform = place;
      setAttr(view.node, "aria-rowindex", at + 2);
      if (view.node === before) before = before.nextSibling;
      else this.rows.insertBefore(view.node, before);
    }
  }

  viewOf({ name, label, members }, changed) {
    const key = name ?? `\n${label}`;
    let view = this.views.get(key);
    const isNew = !view;
    if (name === undefined) {
      if (isNew) view = { node: el("div", { role: "row", class: "row group" }, el("div", { role: "cell", class: "cell" })) };
      const rows = members.map((each) => this.model.tables.get(each));
      const sum = rows.reduce((all, row) => all + (row.rows_per_second || 0), 0);
      const lag = Math.max(0, ...rows.map((row) => row.lag_seconds || 0));
      setText(view.node.firstChild, `${label} · ${counted(members.length, "table", "tables")} · ${rate(sum)} · worst lag ${seconds(lag)}`);
    } else {
      if (isNew) view = this.free.pop() || new RowView();
      if (isNew || changed === null || changed.has(name)) view.update(name, this.model.tables.get(name), this.model.rates.get(name) || [], this.model.now());
    }
    this.views.set(key, view);
    return view;
  }

  tick() {
    for (const [name, view] of this.views) {
      const row = this.model.tables.get(name);
      if (row && row.next_retry_ms) view.tick(row, this.model.now());
    }
    if (this.model.link === "lost") this.explain(this.items.length);
    else if (Date.now() - this.askedMs > REFRESH_MS) this.ask();
  }

  key(event, isTyping) {
    if (event.key === "/" && !isTyping) {
      event.preventDefault();
      this.filter.focus();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp" || (!isTyping && (event.key === "j" || event.key === "k"))) {
      this.move(event, event.key === "ArrowDown" || event.key === "j" ? 1 : -1);
    } else if (event.key === "Escape" && document.activeElement === this.filter) {
      this.filter.value = "";
      this.change({ q: "" });
    }
  }

  move(event, step) {
    const active = document.activeElement;
    if (active.tagName === "SELECT") return;
    const names = this.items.flatMap((item) => item.name ?? []);
    const at = names.findIndex((name) => this.views.get(name)?.link === active);
    const isKey = event.key === "j" || event.key === "k";
    if (at < 0 && active !== this.filter && !isKey) return;
    const view = this.views.get(names[at < 0 ? 0 : at + step]);
    if (!view) return;
    event.preventDefault();
    view.link.focus({ preventScroll: true });
    view.node.scrollIntoView({ block: "nearest" });
  }
}
