// Change rows: live, of one commit, and the history of one key. Before and after are side by side,
// with the cells that an update changed marked.

import { empty, figures, note } from "./cards.js";
import { el, setAttr, setText } from "./dom.js";
import { bytes, count, counted, moment, timeOf } from "./format.js";
import * as daemon from "./stream.js";
import { modeText } from "./tabs.js";

const OWN = ["_change_type", "_commit_version", "_commit_timestamp"];
const LONGEST_CELL = 160;
// Of a table whose rows do not pass through the daemon: commits read at a look, and rows kept.
const LOOKS = 5;
const MOST_ROWS = 200;
const NOTHING = "No change was delivered since the daemon started.";
const OFF = "Rows are not shown: the configuration does not allow it. `web: {rows: 20, mask: [email]}` shows them, without the columns that are masked.";

// Change rows, oldest first -> changes: {kind, version, at, before, after}, in the same order.
export function paired(rows) {
  const changes = [];
  for (const row of rows) {
    const kind = row._change_type;
    const last = changes[changes.length - 1];
    if (kind === "update_postimage" && last && last.kind === "update" && !last.after && last.version === row._commit_version) {
      last.after = row;
      continue;
    }
    const base = { version: row._commit_version, at: row._commit_timestamp, before: null, after: null };
    if (kind === "update_preimage") changes.push({ ...base, kind: "update", before: row });
    else if (kind === "delete") changes.push({ ...base, kind: "delete", before: row });
    else changes.push({ ...base, kind: kind === "update_postimage" ? "update" : "insert", after: row });
  }
  return changes;
}

const asText = (value) => (value === undefined ? "" : value === null ? "null" : typeof value === "object" ? JSON.stringify(value) : String(value));

function cell(value, kind) {
  const text = asText(value);
  const cut = text.length > LONGEST_CELL ? `${text.slice(0, LONGEST_CELL)}…` : text;
  return el("span", { class: `${kind}${value === null ? " null" : ""}`, title: cut === text ? null : text.slice(0, 2000) }, cut);
}

// A cell of a change: the value; where an update changed it, both.
function cellsOf({ kind, before, after }, name) {
  if (kind === "update" && before && after && asText(before[name]) !== asText(after[name])) return el("td", { class: "changed", "data-label": name }, cell(before[name], "old"), el("span", { class: "arrow", "aria-label": "became" }, " → "), cell(after[name], "new"));
  return el("td", { "data-label": name }, cell((after || before)[name], kind === "delete" ? "old" : "same"));
}

// An update whose other row is not shown has one row, and says which.
const half = ({ kind, before, after }) => (kind !== "update" || (before && after) ? null : before ? ": before" : ": after");

export function changesTable(changes, label, onKey) {
  const columns = [...new Set(changes.flatMap(({ before, after }) => Object.keys(after || before)))].filter((name) => !OWN.includes(name));
  const now = Date.now();
  const heads = ["Change", "Version", "Committed", ...columns];
  const shared = { scope: "col" };
  return el(
    "div",
    { class: "scroll tall", tabindex: "0", role: "region", "aria-label": label },
    el(
      "table",
      { class: "list changes" },
      el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", shared, text)))),
      el(
        "tbody",
        {},
        ...changes.map((change) =>
          el(
            "tr",
            { "data-change": change.kind },
            el("td", { "data-label": "Change" }, el("span", { class: "change" }, change.kind, half(change))),
            el("td", { "data-label": "Version" }, el("button", { type: "button", class: "as-link", onclick: () => onKey({ version: change.version }) }, count(change.version))),
            el("td", { "data-label": "Committed", class: "sub", title: change.at }, timeOf(Date.parse(change.at), now)),
            ...columns.map((name) => cellsOf(change, name)),
          ),
        ),
      ),
    ),
  );
}

// The address says what is looked at: …/changes, ?version=12, or ?column=id&value=7.
function readAddress(path) {
  const given = new URLSearchParams((path || "").split("?")[1] || "");
  const version = given.get("version");
  return { version: version !== null && /^\d+$/.test(version) ? Number(version) : null, column: given.get("column"), value: given.get("value") };
}

export class ChangesTab {
  constructor(page, path) {
    this.page = page;
    this.isPaused = false;
    this.state = el("p", { class: "sub", role: "status" });
    this.column = el("select", { id: "key-column", "aria-label": "Column" });
    this.value = el("input", { type: "search", id: "key-value", placeholder: "value", autocomplete: "off", spellcheck: "false", "aria-label": "Value" });
    this.versionField = el("input", { type: "text", id: "version", class: "short", inputmode: "numeric", placeholder: "version", autocomplete: "off", "aria-label": "Version" });
    this.pause = el("button", { type: "button", "aria-pressed": "false", onclick: () => this.hold() }, "Pause view");
    this.back = el("a", { href: page.address("changes"), hidden: true }, "← Live changes");
    const submit = (handler) => (event) => {
      event.preventDefault();
      handler();
    };
    this.tools = el(
      "div",
      { class: "tools explorer-tools" },
      this.back,
      this.pause,
      el("form", { class: "inline", onsubmit: submit(() => this.value.value && this.go({ column: this.column.value, value: this.value.value })) }, el("label", { for: "key-column" }, "History of"), this.column, el("span", {}, "="), this.value, el("button", { type: "submit" }, "Search")),
      el("form", { class: "inline", onsubmit: submit(() => /^\d+$/.test(this.versionField.value) && this.go({ version: Number(this.versionField.value) })) }, el("label", { for: "version" }, "Open commit"), this.versionField, el("button", { type: "submit" }, "Open")),
    );
    this.body = el("div", { class: "body" });
    this.node = el("section", { class: "card w12", id: "s-rows", "aria-label": "Changes" }, this.tools, this.state, this.body);
    this.moved(path);
  }

  get isLive() {
    return this.at.version === null && this.at.column === null;
  }

  go(what) {
    location.hash = `${this.page.address("changes")}?${new URLSearchParams(what)}`;
  }

  moved(path) {
    this.at = readAddress(path);
    this.shown = [];
    this.drawnText = null;
    this.body.replaceChildren();
    if (this.at.value !== null) this.value.value = this.at.value;
    if (this.at.column !== null) this.column.value = this.at.column;
    this.back.hidden = this.isLive;
    this.pause.hidden = !this.isLive;
    this.followed = undefined;
    if (this.at.version !== null) this.openCommit(0);
    else if (this.at.column !== null) this.search(null);
    else if (this.known) this.update(this.known);
  }

  hold() {
    this.isPaused = !this.isPaused;
    setAttr(this.pause, "aria-pressed", this.isPaused);
    setText(this.pause, this.isPaused ? "Follow" : "Pause view");
    if (this.known) this.update(this.known);
  }

  update(table) {
    this.known = table;
    this.drawColumns(table);
    if (!this.isLive || this.isPaused) return;
    if (table.rows_shown && !table.rows) {
      if (table.delivered_version !== null) this.follow(table.delivered_version);
      else this.body.replaceChildren(empty(table.sink ? NOTHING : "This table is not delivered anywhere. Open a commit, or search for a key."));
      return;
    }
    const text = JSON.stringify([table.rows, table.rows_shown]);
    if (text === this.drawnText) return;
    this.drawnText = text;
    if (!table.rows_shown) {
      this.tools.hidden = true;
      setText(this.state, "");
      this.body.replaceChildren(empty(OFF));
    } else if (table.rows) this.drawLive([...table.rows.newest].reverse(), table.rows.masked, "The newest changes");
  }

  // Spark's rows do not pass through the daemon: those of the newest commits are read from the table.
  async follow(newest) {
    if (newest === this.followed || this.isReading) return;
    this.isReading = true;
    if (this.followed === undefined) setText(this.state, "Reading the newest commits…");
    try {
      const found = [];
      for (let version = newest; version !== null && version !== this.followed && found.length < LOOKS; version = found[0].before) found.unshift(await daemon.commit(this.page.name, version, 0));
      const isWhole = this.followed !== undefined && found[0].before === this.followed;
      this.read = [...(isWhole ? this.read : []), ...found.flatMap(({ rows }) => rows)].slice(-MOST_ROWS);
      this.followed = newest;
      if (this.isLive && !this.isPaused) this.drawLive(this.read, found[0].masked, "The changes of the newest commits, read from the table");
    } catch (error) {
      // Another query is running: retry in a second.
      if (error.status !== 503 && this.isLive) this.failed(error);
    }
    this.isReading = false;
  }

  // Rows in the order of delivery, in which pairs are found.
  drawLive(rows, masked, what) {
    const hidden = masked.length ? ` Masked: ${masked.join(", ")}.` : "";
    setText(this.state, rows.length ? `${what}, newest first.${hidden}` : hidden.trim());
    const changes = paired(rows).reverse();
    this.replace(changes.length ? changesTable(changes, "Newest changes, newest first", (what) => this.go(what)) : empty(NOTHING));
  }

  // Keeps the scroll position and the focus.
  replace(...nodes) {
    const before = this.body.querySelector(".scroll");
    const [top, left] = before ? [before.scrollTop, before.scrollLeft] : [0, 0];
    const isFocused = before !== null && before === document.activeElement;
    this.body.replaceChildren(...nodes.filter(Boolean));
    const after = this.body.querySelector(".scroll");
    if (!after) return;
    after.scrollTop = top;
    after.scrollLeft = left;
    if (isFocused) after.focus({ preventScroll: true });
  }

  drawColumns(table) {
    const masked = new Set((table.rows ? table.rows.masked : []).map((name) => name.toLowerCase()));
    const known = table.history.schema ? table.history.schema.columns.map(([name]) => name) : Object.keys(table.rows?.newest?.[0] || {}).filter((name) => !OWN.includes(name));
    const names = known.filter((name) => !masked.has(name.toLowerCase()));
    const text = names.join("\n");
    if (this.column.dataset.names === text) return;
    this.column.dataset.names = text;
    const chosen = this.at.column || this.column.value || (table.key_columns || [])[0];
    this.column.replaceChildren(...names.map((name) => el("option", { value: name, selected: name === chosen }, name)));
    if (this.at.value) this.value.value = this.at.value;
  }

  failed(error) {
    setText(this.state, "");
    this.replace(el("p", { class: "warning", role: "alert" }, error.status ? error.message : "The daemon does not answer."));
  }

  async openCommit(skip) {
    const { version } = this.at;
    setText(this.state, `Reading version ${count(version)} from the table…`);
    try {
      const found = await daemon.commit(this.page.name, version, skip);
      if (this.at.version !== version) return;
      this.shown = skip ? [...this.shown, ...found.rows] : found.rows;
      this.drawCommit(found);
    } catch (error) {
      this.failed(error);
    }
  }

  drawCommit(found) {
    const masked = found.masked.length ? ` Masked: ${found.masked.join(", ")}.` : "";
    setText(this.state, `Version ${count(found.version)}, committed ${moment(found.timestamp_ms)}.${masked}`);
    const changes = paired(this.shown);
    const facts = figures([["Operation", found.operation || "not given", ""], ["Rows found by", modeText(found.change_source), ""], ["Files", `+${count(found.files_added)} −${count(found.files_removed)}`, "added and removed"], ["Bytes", `+${bytes(found.bytes_added)}`, `−${bytes(found.bytes_removed)} removed`]]);
    const parts = found.parts.map((part) => el("li", {}, el("strong", {}, part.change === null ? "both" : part.change.replaceAll("_", " ")), part.path ? [" ", el("code", {}, part.path)] : "", ` ${[part.rows === null ? "" : counted(part.rows, "row", "rows"), part.size_bytes ? bytes(part.size_bytes) : ""].filter(Boolean).join(", ")}`));
    const around = el("p", { class: "buttons-row" }, found.before === null ? null : el("button", { type: "button", onclick: () => this.go({ version: found.before }) }, `← ${count(found.before)}`), found.next === null ? null : el("button", { type: "button", onclick: () => this.go({ version: found.next }) }, `${count(found.next)} →`));
    const more = found.has_more ? el("p", { class: "buttons-row" }, el("button", { type: "button", onclick: () => this.openCommit(this.shown.length) }, "More rows")) : null;
    this.replace(
      around,
      facts,
      el("details", {}, el("summary", {}, `${counted(found.part_count, "part", "parts")} read`), el("ol", { class: "parts" }, ...parts), found.part_count > parts.length ? note(`and ${count(found.part_count - parts.length)} more`) : null),
      changes.length ? changesTable(changes, `Changes of version ${found.version}`, (what) => this.go(what)) : empty("No row changed in this commit."),
      more,
    );
  }

  async search(before) {
    const { column, value } = this.at;
    setText(this.state, `Searching for ${column} = ${value}…`);
    try {
      const found = await daemon.keyHistory(this.page.name, column, value, before);
      if (this.at.column !== column || this.at.value !== value) return;
      this.shown = before === null ? found.rows : [...this.shown, ...found.rows];
      this.drawHistory(found);
    } catch (error) {
      this.failed(error);
    }
  }

  drawHistory(found) {
    const { column, value } = this.at;
    const changes = paired([...this.shown].reverse()).reverse();
    const range = found.first === null ? "" : ` Searched versions ${count(found.first)} to ${count(found.last)}.`;
    setText(this.state, `${column} = ${value}: ${counted(changes.length, "change", "changes")}, newest first.${range}`);
    const more = found.next_before === null ? note("This is the oldest version that the table still has.") : el("p", { class: "buttons-row" }, el("button", { type: "button", onclick: () => this.search(found.next_before) }, "Search further back"));
    this.replace(changes.length ? changesTable(changes, `Changes of ${column} = ${value}`, (what) => this.go(what)) : empty("No change of this key in these versions."), more);
  }
}
