// The sections of a table's page, each made of what `GET /tables/{name}` says.

import { areaChart, bars } from "./charts.js";
import { el } from "./dom.js";
import { NONE, bytes, count, counted, moment, seconds, signed, time } from "./format.js";

const DAY = 86400;
const MODES = {
  cdc: "change files",
  vectors: "deletion vectors",
  rows: "rows compared",
  files: "data files",
  none: "no changes",
};

// Words between backticks are code.
const empty = (text) => el("p", { class: "empty small" }, ...text.split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part)));

function grid(heads, rows, label) {
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    el(
      "table",
      { class: "list" },
      el("thead", {}, el("tr", {}, ...heads.map(([text, kind]) => el("th", { scope: "col", class: kind }, text)))),
      el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell, at) => el("td", { class: heads[at][1], "data-label": heads[at][0] }, cell))))),
    ),
  );
}

export function figures(all, lastGap) {
  return [
    el("dl", { class: "figures" }, ...all.map(([name, value, more]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("span", { class: "big" }, value), el("span", { class: "sub" }, more))))),
    lastGap && el("p", { class: "warning" }, el("strong", {}, "Changes are missing. "), lastGap),
  ];
}

function delivery(commit, table) {
  if (commit.delivered_ms) {
    const after = commit.timestamp_ms ? (commit.delivered_ms - commit.timestamp_ms) / 1000 : null;
    return after === null || after < 0 ? time(commit.delivered_ms) : `${time(commit.delivered_ms)}, after ${seconds(after)}`;
  }
  return table.sink ? "not yet" : NONE;
}

function inOut(added, removed, unit) {
  if (added === undefined) return NONE;
  return el("span", { class: "inout" }, el("span", { class: "in" }, `+${unit(added)}`), " ", el("span", { class: "out" }, `−${unit(removed)}`));
}

export function timeline(commits, table) {
  if (!commits.length) return [empty("Commits appear here as they come. What was there before the daemon looked is in `tailerd history`.")];
  const newest = [...commits].reverse().slice(0, 60);
  const heads = [["Version", "n"], ["Committed", ""], ["Operation", ""], ["Files", "n"], ["Bytes", "n"], ["Read from", ""], ["Delivered", ""]];
  const rows = newest.map((commit) => [
    count(commit.version),
    el("span", { title: moment(commit.timestamp_ms) }, time(commit.timestamp_ms)),
    commit.operation || "not told",
    inOut(commit.files_added, commit.files_removed, count),
    inOut(commit.bytes_added, commit.bytes_removed, bytes),
    MODES[commit.mode] || NONE,
    delivery(commit, table),
  ]);
  const more = commits.length > newest.length ? `The newest ${newest.length} of ${commits.length} commits that are kept here.` : "";
  return [grid(heads, rows, "Commits, newest first"), more && el("p", { class: "note" }, more)];
}

function perDay(size, noun, unit) {
  const growth = size.growth_per_day && size.growth_per_day[noun];
  const watched = size.growth_watched_seconds;
  if (growth === null || growth === undefined || !watched) return NONE;
  const span = watched >= DAY ? "a day" : `in ${seconds(Math.round(watched))}`;
  const month = (growth / watched) * DAY * 30;
  const ahead = watched < 3600 ? "" : `; at this pace ${signed(unit(Math.round(month)), month)} in 30 days`;
  return `${signed(unit(growth), growth)} ${span}${ahead}`;
}

export function growth(points, size) {
  if (!size) return [empty("The size of this table is not measured. `growth: true` in the configuration switches it on; for a table that is only maintained it is not kept.")];
  const column = (at) => points.map((point) => [point[0], point[at]]);
  const charts = [
    ["Bytes", column(2), bytes, size.bytes, perDay(size, "bytes", bytes)],
    ["Files", column(1), count, size.files, perDay(size, "files", count)],
    ["Rows", column(3), count, size.rows, perDay(size, "rows", count)],
  ];
  const isShort = size.growth_watched_seconds < 3600;
  return [
    el(
      "div",
      { class: "charts" },
      ...charts.map(([title, series, unit, now, pace]) => el("div", {}, el("h3", {}, title, " ", el("span", { class: "big" }, unit(now))), el("p", { class: "sub" }, pace), areaChart(series, { title, format: unit, time }))),
    ),
    el("p", { class: "note" }, `${counted(size.deletion_vectors, "file has", "files have")} a deletion vector, with ${counted(size.deleted_rows, "deleted row", "deleted rows")}.`, isShort ? " What it comes to in 30 days is told after an hour of watching." : ""),
  ];
}

export function fileSizes(counts) {
  const first = counts.findIndex((number) => number > 0);
  if (first < 0) return [empty("No file, or not measured.")];
  const last = counts.findLastIndex((number) => number > 0);
  const rows = counts.slice(first, last + 1).map((number, at) => [`up to ${bytes(2 ** (first + at))}`, number, counted(number, "file", "files")]);
  return [bars(rows, "Files by size")];
}

export function maintenance(table, nowMs) {
  const kept = table.maintenance;
  if (!kept) return [empty("The log of this table is not maintained by this daemon. A section `maintenance` in its configuration does that.")];
  const due = kept.due.map((job) => el("li", {}, el("strong", {}, job.replace("_", " ")), " is due. ", kept.due_reasons[job] || ""));
  const jobs = [...table.history.jobs].reverse();
  const heads = [["Ended", ""], ["Job", ""], ["Result", ""], ["Took", "n"], ["Written", "n"], ["What and why", "wide"]];
  const rows = jobs.map((job) => [
    el("span", { title: moment(job.ended_ms) }, time(job.ended_ms)),
    job.job.replace("_", " "),
    el("span", { class: job.result === "failed" ? "bad" : "" }, job.result.replaceAll("_", " ")),
    seconds(job.duration_seconds),
    job.files ? `${counted(job.files, "file", "files")}, ${bytes(job.bytes)}` : NONE,
    job.message,
  ]);
  return [
    kept.refused && el("p", { class: "warning" }, el("strong", {}, "The log is left alone. "), kept.refused.message),
    due.length ? el("ul", { class: "due" }, ...due) : el("p", {}, kept.assessed_ms ? `Nothing is due at version ${count(kept.assessed_version)}, as of ${time(kept.assessed_ms)}.` : "Not looked at yet."),
    jobs.length ? grid(heads, rows, "Maintenance, newest first") : empty("No job has run yet."),
  ];
}

export function sink(table) {
  const rows = [["Kind", table.sink], ["Engine", table.engine], ["Guarantee", table.guarantee || NONE]];
  const offset = table.offset || {};
  for (const [name, value] of Object.entries(offset)) rows.push([`Offset: ${name.replaceAll("_", " ")}`, String(value)]);
  return [el("dl", { class: "pairs" }, ...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))))];
}

export function schema(history) {
  const known = history.schema;
  if (!known) return [empty("Not read yet; it is read with the size of the table.")];
  const changes = [...history.schema_changes].reverse();
  const more = known.column_count - known.columns.length;
  return [
    grid([["Column", "wide"], ["Type", "wide"]], known.columns.map(([name, kind]) => [name, el("code", {}, kind)]), "Columns"),
    more > 0 && el("p", { class: "note" }, `and ${counted(more, "further column", "further columns")}`),
    el("h3", {}, "Changes"),
    changes.length
      ? el("ul", { class: "due" }, ...changes.map((change) => el("li", {}, el("strong", {}, `Version ${count(change.version)}, ${moment(change.timestamp_ms)}: `), change.changes.join("; "))))
      : empty(`None seen since version ${count(known.version)}.`),
  ];
}

export function errors(all) {
  if (!all.length) return [empty("None.")];
  const rows = [...all].reverse().map((error) => [el("span", { title: moment(error.at_ms) }, moment(error.at_ms)), el("code", {}, error.code), error.message]);
  return [grid([["When", ""], ["Code", ""], ["What, why and the way out", "wide"]], rows, "Errors, newest first")];
}

export function newestRows(rows) {
  if (rows === null) return [empty("Off. `web: {rows: 20, mask: [email]}` in the configuration shows the newest rows of tables on the Arrow engine here, without the columns that are masked.")];
  const masked = rows.masked.length && el("p", { class: "note" }, `Masked: ${rows.masked.join(", ")}.`);
  if (!rows.newest.length) return [masked, empty("No rows since the daemon started.")];
  const columns = [...new Set(rows.newest.flatMap((row) => Object.keys(row)))];
  const own = ["_change_type", "_commit_version", "_commit_timestamp"];
  const order = [...own, ...columns.filter((name) => !own.includes(name))];
  const text = (value) => (value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));
  return [masked, grid(order.map((name) => [name, ""]), rows.newest.map((row) => order.map((name) => text(row[name]).slice(0, 200))), "Newest change rows, newest first")];
}
