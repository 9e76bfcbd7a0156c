// All tables, what needs somebody first. Only rows in sight exist, so that a thousand cost as much
// as twenty.

import { sparkline } from "./charts.js";
import { el, setAttr, setText } from "./dom.js";
import { NONE, bytes, count, counted, rate, seconds } from "./format.js";

const RANK = { failed: 0, retrying: 1, starting: 2, paused: 3, stopped: 4, running: 5 };
const BEYOND = 8;
const CHANGES = [
  ["insert", "+", "inserted"],
  ["update_postimage", "~", "updated"],
  ["delete", "−", "deleted"],
];
const HEADS = ["Table", "State", "Version / head", "Lag", "Delivered", "Log since checkpoint"];
let remembered = { scroll: 0, filter: "", state: "" };

export function ratesByChange(row) {
  const rates = row.rows_per_second_by_change || {};
  return CHANGES.filter(([kind]) => rates[kind]).map(([kind, sign]) => `${sign}${rates[kind] < 10 ? rates[kind].toFixed(2) : count(Math.round(rates[kind]))}`).join("  ");
}

export function retryText(row, nowMs) {
  if (row.state !== "retrying" || !row.next_retry_ms) return "";
  const left = Math.ceil((row.next_retry_ms - nowMs) / 1000);
  const attempt = `attempt ${count(row.attempt + 1)}`;
  return left > 0 ? `${attempt} in ${seconds(left)}` : `${attempt} now`;
}

class RowView {
  constructor() {
    this.link = el("a", { class: "row-link" });
    this.place = el("span", { class: "sub" });
    this.state = el("span", { class: "pill" });
    this.retry = el("span", { class: "sub" });
    this.offset = el("span", { class: "figure" });
    this.head = el("span", { class: "sub" });
    this.lag = el("span", { class: "figure" });
    this.versions = el("span", { class: "sub" });
    this.spark = sparkline();
    this.rate = el("span", { class: "figure" });
    this.kinds = el("span", { class: "sub" });
    this.debt = el("span", { class: "figure" });
    this.size = el("span", { class: "sub" });
    this.error = el("span", { class: "row-error" });
    const cell = (name, ...children) => el("div", { role: "cell", class: `cell ${name}` }, ...children);
    this.node = el(
      "div",
      { role: "row", class: "row" },
      cell("c-name", this.link, this.place, this.error),
      cell("c-state", this.state, this.retry),
      cell("c-version", this.offset, this.head),
      cell("c-lag", el("span", { class: "stack" }, this.lag, this.versions), this.spark.node),
      cell("c-rate", this.rate, this.kinds),
      cell("c-debt", this.debt, this.size),
    );
  }

  update(name, row, lags, nowMs) {
    setText(this.link, name);
    setAttr(this.link, "href", `#/tables/${encodeURIComponent(name)}`);
    setAttr(this.link, "title", name.length > 30 ? name : null);
    setText(this.place, row.sink ? `to ${row.sink}, ${row.engine}` : "log maintained only");
    setAttr(this.state, "data-state", row.state);
    setText(this.state, row.state);
    const isBad = row.state === "failed" || row.state === "retrying";
    setAttr(this.node, "data-bad", isBad ? row.state : null);
    setText(this.error, isBad && row.last_error ? row.last_error.message : "");
    setAttr(this.error, "title", isBad && row.last_error ? row.last_error.message : null);
    this.tick(row, nowMs);
    setText(this.offset, row.delivered_version === null ? NONE : count(row.delivered_version));
    setText(this.head, row.head_version === null ? "head not known" : `head ${count(row.head_version)}`);
    setText(this.lag, seconds(row.lag_seconds));
    setText(this.versions, row.lag_versions === null ? "not known" : row.lag_versions === 0 ? "up to date" : counted(row.lag_versions, "version", "versions"));
    setAttr(this.lag, "data-late", row.lag_seconds > 60 ? "" : null);
    this.spark.draw(lags);
    setText(this.rate, row.sink ? rate(row.rows_per_second) : NONE);
    setText(this.kinds, ratesByChange(row));
    setText(this.debt, counted(row.commits_since_checkpoint, "commit", "commits"));
    setText(this.size, row.bytes_since_checkpoint === null ? "" : bytes(row.bytes_since_checkpoint));
  }

  tick(row, nowMs) {
    setText(this.retry, retryText(row, nowMs) || (row.gaps ? counted(row.gaps, "gap", "gaps") : ""));
  }
}

export class Overview {
  constructor(model) {
    this.model = model;
    this.scroll = remembered.scroll;
    this.views = new Map();
    this.free = [];
    this.names = [];
    this.order = "";
    this.filter = el("input", { type: "search", id: "filter", placeholder: "Filter by name  ( / )", autocomplete: "off", spellcheck: "false" });
    this.filter.value = remembered.filter;
    this.states = el("div", { class: "chips", role: "group", "aria-label": "Show one state" });
    this.chips = new Map();
    this.rows = el("div", { class: "rows", role: "rowgroup" });
    this.problems = el("ul", { class: "problems", "aria-label": "Wrong beside the tables", hidden: true });
    this.empty = el("div", { class: "empty", hidden: true });
    this.table = el(
      "div",
      { class: "grid", role: "table", "aria-label": "Tables" },
      el("div", { role: "rowgroup", class: "head-group" }, el("div", { role: "row", class: "row-head" }, ...HEADS.map((text) => el("div", { role: "columnheader" }, text)))),
      this.rows,
    );
    this.node = el(
      "section",
      { class: "overview", "aria-label": "Overview" },
      el("h1", { class: "unseen" }, "Tables"),
      el("div", { class: "tools" }, el("label", { class: "unseen", for: "filter" }, "Filter by name"), this.filter, this.states),
      this.problems,
      this.table,
      this.empty,
    );
    this.filter.addEventListener("input", () => this.refilter());
    this.onScroll = () => this.draw(null);
  }

  opened() {
    window.addEventListener("scroll", this.onScroll, { passive: true });
    window.addEventListener("resize", this.onScroll);
  }

  close() {
    remembered = { ...remembered, scroll: window.scrollY, filter: this.filter.value };
    window.removeEventListener("scroll", this.onScroll);
    window.removeEventListener("resize", this.onScroll);
  }

  refilter() {
    remembered.filter = this.filter.value;
    this.sort();
    this.draw(null);
  }

  update(names) {
    this.drawTroubles();
    this.sort();
    this.draw(names);
  }

  drawTroubles() {
    const texts = this.model.problems.map((problem) => `${problem.part}: ${problem.error.message}`);
    while (this.problems.childElementCount > texts.length) this.problems.lastChild.remove();
    while (this.problems.childElementCount < texts.length) this.problems.append(el("li"));
    texts.forEach((text, at) => setText(this.problems.children[at], text));
    this.problems.hidden = !texts.length;
  }

  sort() {
    const { tables } = this.model;
    const wanted = this.filter.value.toLowerCase();
    const counts = new Map();
    const names = [];
    for (const [name, row] of tables) {
      counts.set(row.state, (counts.get(row.state) || 0) + 1);
      if (name.toLowerCase().includes(wanted) && (!remembered.state || row.state === remembered.state)) names.push(name);
    }
    const rank = (name) => RANK[tables.get(name).state] ?? 9;
    this.names = names.sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
    this.drawChips(counts);
    this.explain();
  }

  drawChips(counts) {
    const shown = Object.keys(RANK).filter((state) => counts.get(state) || remembered.state === state);
    if (shown.join() !== [...this.chips.keys()].join()) {
      this.chips = new Map(shown.map((state) => [state, el("button", { type: "button", class: "chip", "data-state": state, onclick: () => this.choose(state) })]));
      this.states.replaceChildren(...this.chips.values());
    }
    for (const [state, chip] of this.chips) {
      setText(chip, `${count(counts.get(state) || 0)} ${state}`);
      setAttr(chip, "aria-pressed", remembered.state === state);
    }
  }

  choose(state) {
    remembered.state = remembered.state === state ? "" : state;
    this.refilter();
  }

  explain() {
    const isEmpty = this.names.length === 0;
    this.empty.hidden = !isEmpty;
    this.table.hidden = isEmpty;
    if (!isEmpty) return;
    if (!this.model.isLoaded) setText(this.empty, "Waiting for the daemon…");
    else if (this.model.tables.size) setText(this.empty, "No table fits the filter.");
    else setText(this.empty, "This daemon has no tables. Name some below `tables` in its configuration, or a pattern below `discover`; they appear here by themselves.");
  }

  draw(changed) {
    const height = matchMedia("(max-width: 720px)").matches ? 188 : 68;
    const total = `${this.names.length * height}px`;
    if (this.rows.style.height !== total) this.rows.style.height = total;
    setAttr(this.table, "aria-rowcount", this.names.length + 1);
    const top = window.scrollY - this.rows.offsetTop;
    const first = Math.max(0, Math.floor(top / height) - BEYOND);
    const last = Math.min(this.names.length, Math.ceil((top + window.innerHeight) / height) + BEYOND);
    const wanted = new Set(this.names.slice(first, last));
    for (const [name, view] of this.views) {
      if (!wanted.has(name) && (!view.node.contains(document.activeElement) || !this.model.tables.has(name))) {
        view.node.remove();
        this.views.delete(name);
        this.free.push(view);
      }
    }
    let before = this.rows.firstChild;
    for (let at = first; at < last; at += 1) {
      const name = this.names[at];
      let view = this.views.get(name);
      const isNew = !view;
      if (isNew) {
        view = this.free.pop() || new RowView();
        this.views.set(name, view);
      }
      if (isNew || changed === null || changed.has(name)) {
        view.update(name, this.model.tables.get(name), this.model.lags.get(name) || [], this.model.now());
      }
      const place = `translateY(${at * height}px)`;
      if (view.node.style.transform !== place) view.node.style.transform = place;
      setAttr(view.node, "aria-rowindex", at + 2);
      if (view.node === before) before = before.nextSibling;
      else this.rows.insertBefore(view.node, before);
    }
  }

  tick() {
    for (const [name, view] of this.views) {
      const row = this.model.tables.get(name);
      if (row && row.next_retry_ms) view.tick(row, this.model.now());
    }
  }

  key(event) {
    if (event.key === "/" && document.activeElement !== this.filter) {
      event.preventDefault();
      this.filter.focus();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      this.move(event, event.key === "ArrowDown" ? 1 : -1);
    } else if (event.key === "Escape" && document.activeElement === this.filter) {
      this.filter.value = "";
      this.refilter();
    }
  }

  move(event, step) {
    const active = document.activeElement;
    const at = this.names.findIndex((name) => this.views.get(name)?.link === active);
    if (at < 0 && active !== this.filter) return;
    const view = this.views.get(this.names[at < 0 ? 0 : at + step]);
    if (!view) return;
    event.preventDefault();
    view.link.focus({ preventScroll: true });
    view.node.scrollIntoView({ block: "nearest" });
  }
}
