// Pieces that the views are made of: cards that are redrawn only with news, lists, pairs.

import { el } from "./dom.js";

// Words between backticks are code.
export const said = (text) => text.split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part));
export const empty = (text) => el("p", { class: "empty small" }, ...said(text));
export const note = (...parts) => el("p", { class: "note" }, ...parts);

export class Cards {
  constructor() {
    this.node = el("div", { class: "cards" });
    this.drawn = new Map();
  }

  // Draws a card; again only where `value`, what it shows, has changed: focus and selection stay.
  card(id, title, value, make, span = 12) {
    const text = JSON.stringify(value);
    let known = this.drawn.get(id);
    if (!known) {
      const body = el("div", { class: "body" });
      this.node.append(el("section", { class: `card w${span}`, id: `s-${id}`, "aria-labelledby": `h-${id}` }, el("h2", { id: `h-${id}` }, title), body));
      known = { body, text: null };
      this.drawn.set(id, known);
    }
    if (known.text === text) return;
    known.text = text;
    const scrolled = known.body.querySelector(".scroll")?.scrollTop;
    known.body.replaceChildren(...make().filter(Boolean));
    if (scrolled) known.body.querySelector(".scroll").scrollTop = scrolled;
  }

  // A card whose content keeps itself up to date.
  lasting(id, title, content, span = 12) {
    this.node.append(el("section", { class: `card w${span}`, id: `s-${id}`, "aria-labelledby": `h-${id}` }, el("h2", { id: `h-${id}` }, title), el("div", { class: "body" }, ...[content].flat())));
    this.drawn.set(id, { text: "" });
  }
}

// Heads are [label, class]; a cell is a text or a node.
export function grid(heads, rows, label) {
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

export function figures(all) {
  return el("dl", { class: "figures" }, ...all.map(([name, value, more]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("span", { class: "big" }, value), el("span", { class: "sub" }, more)))));
}

export function pairs(rows) {
  return el("dl", { class: "pairs" }, ...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}
