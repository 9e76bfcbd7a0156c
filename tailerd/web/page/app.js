// The page: one connection, some views. What the daemon says is kept here; views draw it.

import { askToken, showKeys } from "./actions.js";
import { DaemonPage } from "./daemon.js";
import { el, setAttr, setText } from "./dom.js";
import { FleetPage } from "./fleet.js";
import { isLocalUtc, seconds, setZone, time, zoneName, zoneText } from "./format.js";
import { Refused, daemon, listen } from "./stream.js";
import { TablePage } from "./table.js";

const RETRY_MS = [500, 1000, 2000, 5000, 10000];
// The daemon says something every five seconds.
const SILENCE_MS = 16000;
const SAMPLE_MS = 10000;
const SAMPLES = 30;

const model = { tables: new Map(), rates: new Map(), problems: [], engines: {}, prices: null, skewMs: 0, atMs: null, isLoaded: false, link: "connecting", now: () => Date.now() + model.skewMs };
const main = document.getElementById("main");
let view = null;
let isDrawing = false;
let changed = new Set();
let retryAtMs = 0;
let retryNow = () => {};

function draw() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    const names = changed;
    changed = new Set();
    const began = performance.now();
    view.update(names);
    drawTitle();
    performance.measure("tailerd-update", { start: began, end: performance.now() });
  });
}

function drawTitle() {
  let failed = 0;
  for (const row of model.tables.values()) failed += row.state === "failed" ? 1 : 0;
  const parts = [view.title, "tailerd"].filter(Boolean).join(" · ");
  const lost = model.link === "lost" ? "(offline) " : "";
  const text = lost + (failed ? `(${failed} failed) ${parts}` : parts);
  if (document.title !== text) document.title = text;
}

function take(message) {
  model.skewMs = message.at_ms - Date.now();
  model.atMs = message.at_ms;
  model.problems = message.problems;
  model.engines = message.engines_starting;
  if (message.is_all) {
    for (const known of model.tables.keys()) changed.add(known);
    model.tables.clear();
    model.rates = new Map(Object.entries(message.rates));
    model.isLoaded = true;
  }
  for (const [table, row] of Object.entries(message.tables)) {
    if (row === null) {
      model.tables.delete(table);
      model.rates.delete(table);
    } else model.tables.set(table, row);
    changed.add(table);
  }
  draw();
}

function sample() {
  if (model.link !== "live") return;
  for (const [table, row] of model.tables) {
    const known = model.rates.get(table) || [];
    known.push(row.rows_per_second);
    if (known.length > SAMPLES) known.shift();
    model.rates.set(table, known);
    if (row.rows_per_second) changed.add(table);
  }
  draw();
}

function say(state, text) {
  const node = document.getElementById("link");
  model.link = state;
  setAttr(node, "data-state", state);
  setText(node, text);
  document.body.classList.toggle("is-lost", state === "lost");
  drawBanner();
  if (view) drawTitle();
}

// What is shown is old: say since when, and what happens next.
function drawBanner() {
  const banner = document.getElementById("banner");
  const isLost = model.link === "lost" && model.isLoaded;
  if (banner.hidden !== !isLost) {
    banner.hidden = !isLost;
    banner.replaceChildren(el("span", { id: "banner-text" }), el("button", { type: "button", onclick: () => retryNow() }, "Retry now"));
  }
  if (!isLost) return;
  const left = Math.max(0, Math.ceil((retryAtMs - Date.now()) / 1000));
  setText(document.getElementById("link"), `as of ${time(model.atMs)}`);
  setText(document.getElementById("banner-text"), `Connection to the daemon lost. Everything below is as of ${time(model.atMs)} ${zoneText()}; ${left ? `next attempt in ${seconds(left)}` : "trying again"}.`);
}

async function askPrices() {
  try {
    model.prices = (await daemon()).configuration.web || null;
    for (const known of model.tables.keys()) changed.add(known);
    draw();
  } catch {
    // The banner says that the connection is lost.
  }
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
        const isBack = model.link !== "live";
        say("live", "live");
        take(message);
        if (isBack) askPrices();
        if (isBack && view.reconnected) view.reconnected();
      }, ending.signal);
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        say("lost", "token needed");
        await askUntilGiven();
        continue;
      }
    } finally {
      clearTimeout(silence);
    }
    const wait = RETRY_MS[Math.min(failures, RETRY_MS.length - 1)];
    retryAtMs = Date.now() + wait;
    say("lost", "no connection");
    await new Promise((resolve) => {
      retryNow = resolve;
      setTimeout(resolve, wait);
    });
    failures += 1;
  }
}

async function askUntilGiven() {
  const why = "This daemon requires its token to show anything.";
  while (!(await askToken(why))) {
    await new Promise((resolve) => {
      main.replaceChildren(el("div", { class: "empty" }, el("p", {}, why), el("button", { type: "button", class: "primary", onclick: resolve }, "Enter the token")));
    });
  }
  route();
}

function viewAt(path) {
  const match = /^\/tables\/([^/?]+)(?:\/([a-z]+))?/.exec(path);
  if (match) {
    try {
      return ["fleet", decodeURIComponent(match[1]), match[2] || "overview"];
    } catch {
      // No address of ours: the fleet is.
    }
  }
  return path.startsWith("/daemon") ? ["daemon", null, ""] : ["fleet", null, ""];
}

function route() {
  if (location.hash === "#main") return;
  const path = location.hash.slice(1) || "/";
  const [place, name, tab] = viewAt(path);
  for (const link of document.querySelectorAll(".places a")) setAttr(link, "aria-current", link.dataset.place === place ? "page" : null);
  if (name !== null && view instanceof TablePage && view.name === name) {
    view.show(tab, path);
    drawTitle();
    return;
  }
  if (view) view.close();
  if (name !== null) view = new TablePage(model, name, tab, path);
  else view = place === "daemon" ? new DaemonPage(model) : new FleetPage(model, path);
  main.replaceChildren(view.node);
  view.opened();
  for (const known of model.tables.keys()) changed.add(known);
  draw();
}

window.addEventListener("hashchange", () => {
  const before = view;
  route();
  if (view === before) return;
  window.scrollTo(0, view.scroll || 0);
  if (!(view instanceof FleetPage)) main.focus({ preventScroll: true });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.getElementById("keys").addEventListener("click", showKeys);

const zone = document.getElementById("zone");
function drawZone() {
  setText(zone, zoneText());
  setAttr(zone, "aria-label", `Time zone: ${zoneText()}`);
  zone.disabled = isLocalUtc();
}
zone.addEventListener("click", () => {
  setZone(zoneName() !== "UTC");
  drawZone();
  const old = view;
  view = null;
  old.close();
  route();
});

let isGoing = false;
const GOING = { f: "#/", d: "#/daemon", h: "/docs" };
document.addEventListener("keydown", (event) => {
  if (document.getElementById("dialog").open || event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement?.tagName);
  if (!isTyping && isGoing && GOING[event.key]) {
    isGoing = false;
    location.assign(GOING[event.key]);
    return;
  }
  isGoing = !isTyping && event.key === "g";
  if (event.key === "?" && !isTyping) showKeys();
  else if (event.key === "Escape" && !isTyping && !(view instanceof FleetPage)) location.hash = "#/";
  else view.key(event, isTyping);
});
setInterval(() => {
  drawBanner();
  view.tick();
}, 1000);
setInterval(sample, SAMPLE_MS);
drawZone();
route();
connect();
