// The page: one connection, two views. What the daemon says is kept here; views draw it.

import { askToken } from "./actions.js";
import { el, setText } from "./dom.js";
import { count, counted, rate } from "./format.js";
import { Overview } from "./overview.js";
import { Refused, listen } from "./stream.js";
import { TablePage } from "./table.js";

const RETRY_MS = [500, 1000, 2000, 5000, 10000];
const SILENCE_MS = 40000;

const model = { tables: new Map(), lags: new Map(), problems: [], samples: 120, skewMs: 0, isLoaded: false, now: () => Date.now() + model.skewMs };
const main = document.getElementById("main");
let view = null;
let isDrawing = false;
let changed = new Set();

function draw() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    const names = changed;
    changed = new Set();
    const began = performance.now();
    view.update(names);
    summarise();
    performance.measure("tailerd-update", { start: began, end: performance.now() });
  });
}

function summarise() {
  let rows = 0;
  const states = new Map();
  for (const row of model.tables.values()) {
    rows += row.rows_per_second || 0;
    states.set(row.state, (states.get(row.state) || 0) + 1);
  }
  const bad = ["failed", "retrying", "paused"].filter((state) => states.get(state)).map((state) => `${count(states.get(state))} ${state}`);
  const parts = [counted(model.tables.size, "table", "tables"), ...bad, rate(rows)];
  setText(document.getElementById("summary"), model.isLoaded ? parts.join(" · ") : "");
  const failed = states.get("failed");
  const name = view instanceof TablePage ? `${view.name} · tailerd` : "tailerd";
  document.title = failed ? `(${failed} failed) ${name}` : name;
}

function take(name, message) {
  model.skewMs = message.at_ms - Date.now();
  if (message.problems) model.problems = message.problems;
  if (name === "tables") {
    if (message.is_all) {
      for (const known of model.tables.keys()) changed.add(known);
      model.tables.clear();
      model.lags = new Map(Object.entries(message.lags));
      model.isLoaded = true;
    }
    for (const [table, row] of Object.entries(message.tables)) {
      if (row === null) {
        model.tables.delete(table);
        model.lags.delete(table);
      } else model.tables.set(table, row);
      changed.add(table);
    }
  } else if (name === "lags") {
    for (const table of model.tables.keys()) {
      const samples = model.lags.get(table) || [];
      const given = message.lags[table];
      samples.push(given === undefined ? 0 : given);
      if (samples.length > model.samples) samples.shift();
      model.lags.set(table, samples);
      changed.add(table);
    }
  }
  draw();
}

function say(state, text) {
  const node = document.getElementById("link");
  if (node.dataset.state !== state) node.dataset.state = state;
  setText(node, text);
}

async function connect() {
  let failures = 0;
  for (;;) {
    const ending = new AbortController();
    let silence = setTimeout(() => ending.abort(), SILENCE_MS);
    try {
      await listen((name, message) => {
        failures = 0;
        clearTimeout(silence);
        silence = setTimeout(() => ending.abort(), SILENCE_MS);
        say("live", "live");
        take(name, message);
      }, ending.signal);
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        say("lost", "token needed");
        if (await askToken("This daemon shows nothing without its token.")) continue;
        await new Promise((resolve) => {
          const again = el("button", { type: "button", class: "primary", onclick: resolve }, "Give the token");
          main.replaceChildren(el("div", { class: "empty" }, el("p", {}, "This daemon shows nothing without its token."), again));
        });
        route();
        continue;
      }
    } finally {
      clearTimeout(silence);
    }
    // The last figures stay, marked as old.
    say("lost", "no connection, trying again");
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]));
    failures += 1;
  }
}

function route() {
  const match = /^#\/tables\/(.+)$/.exec(location.hash);
  if (location.hash === "#main") return;
  if (view) view.close();
  let name = null;
  try {
    name = match ? decodeURIComponent(match[1]) : null;
  } catch {
    // No address of ours: the overview is.
  }
  view = name === null ? new Overview(model) : new TablePage(model, name);
  main.replaceChildren(view.node);
  view.opened();
  for (const known of model.tables.keys()) changed.add(known);
  draw();
}

window.addEventListener("hashchange", () => {
  route();
  window.scrollTo(0, view.scroll || 0);
  if (view instanceof TablePage) main.focus({ preventScroll: true });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener("keydown", (event) => {
  if (document.getElementById("dialog").open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && view instanceof TablePage) location.hash = "#/";
  else view.key(event);
});
setInterval(() => view.tick(), 1000);
route();
connect();
