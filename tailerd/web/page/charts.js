// Charts, drawn from values; each has a text alternative for screen readers.

import { el, setAttr, setText, svg } from "./dom.js";
import { NONE, moment, shortTime, time, zoneShift } from "./format.js";

const SPARK_SAMPLES = 30;
const LEAST_SECONDS = 120;

function linePath(values, width, height, high) {
  const step = values.length > 1 ? width / (values.length - 1) : 0;
  let path = "";
  let isDown = false;
  values.forEach((value, at) => {
    if (value === null || value === undefined) {
      isDown = false;
      return;
    }
    path += `${isDown ? "L" : "M"}${(at * step).toFixed(1)} ${(height - (value / high) * height).toFixed(1)}`;
    isDown = true;
  });
  return path;
}

export function sparkline() {
  const line = svg("path", { class: "spark-line" });
  const picture = svg("svg", { class: "spark", viewBox: "0 -2 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }, line);
  return {
    node: picture,
    draw(values) {
      // The newest is at the right, and a short past does not fill the width.
      const padded = [...Array(Math.max(0, SPARK_SAMPLES - values.length)).fill(null), ...values.slice(-SPARK_SAMPLES)];
      const high = Math.max(1e-9, ...values.map((value) => value || 0));
      setAttr(line, "d", linePath(padded, 100, 20, high));
    },
  };
}

// Values of a scale that people count in: 1, 2, 5 and their tenfolds.
function niceTop(high, isBytes) {
  if (isBytes && high >= 1024) {
    const kilo = 1024 ** Math.floor(Math.log(high) / Math.log(1024));
    return niceTop(high / kilo) * kilo;
  }
  const unit = 10 ** Math.floor(Math.log10(high));
  return [1, 2, 5, 10].map((step) => step * unit).find((top) => top >= high * 0.999);
}

// Seconds between marks of time, so that no more than so many fit.
const STEPS = [10, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
const stepOf = (span, most) => STEPS.find((step) => span / step <= most) || span;

// The range asked for; less where measuring began later, so that the beginning is no empty picture.
function rangeOf(points, asked) {
  const [from, to] = points.length ? [points[0][0], points[points.length - 1][0]] : [0, 1];
  return asked ? [Math.min(Math.max(asked[0], from), asked[1] - LEAST_SECONDS), asked[1]] : [from, to];
}

// Charts of one group show the same moment.
const groups = new Map();

// A chart over time. `lines` are {label, color, area}; points are [seconds, value for each line].
export class TimeChart {
  constructor({ title, lines, format, height = 150, isBare = false, isSize = false, isBytes = false, group = "time" }) {
    this.options = { title, lines, format, height, isBare, isSize, isBytes, group };
    this.value = el("span", { class: "chart-value" });
    this.when = el("span", { class: "chart-when" });
    this.picture = el("div", { class: "chart-picture", role: "img", tabindex: "0", "aria-label": title });
    const keys = lines.length > 1 ? el("span", { class: "chart-keys", "aria-hidden": "true" }, ...lines.map((line) => el("span", { class: `key ${line.color}` }, line.label))) : null;
    this.none = el("p", { class: "chart-none" }, "No measurements in this time range yet.");
    this.node = el("figure", { class: isBare ? "chart bare" : "chart" }, el("figcaption", {}, el("span", { class: "chart-title" }, title), keys, this.value, this.when), this.picture, this.none);
    this.picture.addEventListener("keydown", (event) => this.step(event));
    this.picture.addEventListener("pointermove", (event) => this.point(this.nearest(event.offsetX)));
    this.picture.addEventListener("pointerleave", () => this.point(null));
    this.picture.addEventListener("blur", () => this.point(null));
    this.watcher = new ResizeObserver(() => this.paint());
    this.watcher.observe(this.picture);
    if (!groups.has(group)) groups.set(group, new Set());
    groups.get(group).add(this);
    this.points = [];
    this.at = null;
  }

  close() {
    this.watcher.disconnect();
    groups.get(this.options.group).delete(this);
  }

  // Points that are further apart than `width` seconds have a hole between them.
  draw(points, width, range) {
    this.points = points;
    this.hole = width ? width * 1.5 : Infinity;
    this.range = rangeOf(points, range);
    const isEmpty = !points.some((point) => point.slice(1).some((value) => value !== null));
    this.none.hidden = !isEmpty;
    this.picture.hidden = isEmpty;
    this.painted = "";
    this.describe();
    this.paint();
  }

  known(line) {
    return this.points.map((point) => point[line + 1]).filter((value) => value !== null && value !== undefined);
  }

  describe() {
    const { lines, format, title } = this.options;
    const texts = lines.map((line, number) => {
      const known = this.known(number);
      return known.length ? `${line.label}: now ${format(known[known.length - 1])}, at most ${format(Math.max(...known))}` : `${line.label}: none`;
    });
    setAttr(this.picture, "aria-label", `${title}. ${texts.join("; ")}`);
    this.say();
  }

  frame() {
    const { height, isBare } = this.options;
    const width = this.picture.clientWidth;
    return isBare ? { left: 0, right: width, top: 3, bottom: height - 2, width, height } : { left: 62, right: width - 8, top: 7, bottom: height - 20, width, height };
  }

  x(at) {
    const { left, right } = this.box;
    const [from, to] = this.range;
    return left + ((at - from) / (to - from || 1)) * (right - left);
  }

  y(value) {
    const { top, bottom } = this.box;
    return bottom - ((value - this.low) / (this.high - this.low)) * (bottom - top);
  }

  paint() {
    if (!this.range) return;
    this.box = this.frame();
    const { width, height } = this.box;
    if (!width || this.picture.hidden || this.painted === `${width}`) return;
    this.painted = `${width}`;
    const { lines, isBare } = this.options;
    const all = lines.flatMap((_, number) => this.known(number));
    const least = Math.min(...all);
    const most = Math.max(...all);
    // A size that hardly moves is drawn as it moves, not as a flat line.
    this.low = this.options.isSize && least > 0 && least > most * 0.8 && least < most ? least - (most - least) : 0;
    this.low = Math.min(this.low, least);
    this.high = most > this.low ? (this.low ? most + (most - this.low) * 0.1 : niceTop(most, this.options.isBytes)) : this.low + 1;
    this.cursor = svg("g", { class: "chart-cursor" });
    this.picture.replaceChildren(svg("svg", { width, height, "aria-hidden": "true" }, isBare ? null : this.axes(), ...lines.flatMap((line, number) => this.line(line, number)), this.cursor));
    this.say();
  }

  axes() {
    const { left, right, top, bottom } = this.box;
    const { format } = this.options;
    const values = [0, 0.5, 1].map((share) => this.low + (this.high - this.low) * share);
    const texts = values.map((value) => format(value));
    const marks = values.filter((_, at) => at === 0 || texts[at] !== texts[at - 1]).flatMap((value) => [svg("path", { class: "chart-grid", d: `M${left} ${this.y(value)}H${right}` }), svg("text", { class: "chart-text", x: left - 7, y: this.y(value) + 4, "text-anchor": "end" }, format(value).replace(" rows/s", ""))]);
    const [from, to] = this.range;
    const step = stepOf(to - from, Math.max(2, (right - left) / 85));
    const shift = zoneShift(from * 1000);
    const isLong = step >= 86400;
    for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) {
      const ms = at * 1000;
      const text = isLong ? moment(ms).slice(0, 6) : step < 60 ? time(ms) : shortTime(ms);
      if (this.x(at) < left + 14 || this.x(at) > right - 14) continue;
      marks.push(svg("path", { class: "chart-grid faint", d: `M${this.x(at)} ${top}V${bottom}` }), svg("text", { class: "chart-text", x: this.x(at), y: bottom + 15, "text-anchor": "middle" }, text));
    }
    return svg("g", {}, ...marks);
  }

  line({ color, area }, number) {
    const runs = [];
    let before = null;
    for (const point of this.points) {
      const value = point[number + 1];
      if (value === null || value === undefined) before = null;
      else {
        if (before === null || point[0] - before > this.hole) runs.push([]);
        runs[runs.length - 1].push([this.x(point[0]), this.y(value)]);
        before = point[0];
      }
    }
    // A point alone is a short stroke, or it would not be seen.
    const paths = runs.map((run) => (run.length === 1 ? [[run[0][0] - 2, run[0][1]], [run[0][0] + 2, run[0][1]]] : run)).map((run) => run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L"));
    const ground = this.y(this.low);
    const closed = paths.map((path) => `M${path.split(" ")[0]} ${ground}L${path}L${path.slice(path.lastIndexOf("L") + 1).split(" ")[0]} ${ground}Z`).join("");
    return [area ? svg("path", { class: `chart-area ${color}`, d: closed }) : null, svg("path", { class: `chart-line ${color}`, d: paths.map((path) => `M${path}`).join("") })];
  }

  nearest(left) {
    let best = null;
    for (const [at] of this.points) if (best === null || Math.abs(this.x(at) - left) < Math.abs(this.x(best) - left)) best = at;
    return best;
  }

  // Shows a moment, in all charts of the group.
  point(at) {
    for (const chart of groups.get(this.options.group)) {
      chart.at = at;
      if (chart.box) chart.say();
    }
  }

  // The values at the chosen moment, else the newest.
  say() {
    const { lines, format } = this.options;
    const chosen = this.at === null ? null : this.points.find((point) => point[0] === this.at);
    const texts = lines.map((line, number) => {
      const value = chosen ? chosen[number + 1] : this.known(number).pop();
      const text = value === null || value === undefined ? NONE : format(value);
      return lines.length > 1 ? `${line.label} ${text}` : text;
    });
    setText(this.value, texts.join("  "));
    setText(this.when, chosen ? time(chosen[0] * 1000) : "");
    if (!this.cursor) return;
    this.cursor.replaceChildren();
    if (!chosen) return;
    const x = this.x(chosen[0]).toFixed(1);
    this.cursor.append(svg("path", { class: "chart-now", d: `M${x} ${this.box.top}V${this.box.bottom}` }));
    lines.forEach(({ color }, number) => {
      const value = chosen[number + 1];
      if (value !== null && value !== undefined) this.cursor.append(svg("circle", { class: `chart-dot ${color}`, cx: x, cy: this.y(value), r: 3.5 }));
    });
  }

  step(event) {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key) || !this.points.length) return;
    event.preventDefault();
    event.stopPropagation();
    const last = this.points.length - 1;
    const found = this.points.findIndex((point) => point[0] === this.at);
    const now = found < 0 ? last + 1 : found;
    this.point(this.points[Math.min(last, Math.max(0, now + (event.key === "ArrowLeft" ? -1 : 1)))][0]);
  }
}

// Bars are [label, value, words].
export function bars(rows, title) {
  const high = Math.max(1, ...rows.map((row) => row[1]));
  const bar = (value) => svg("rect", { class: "bar-fill", width: Math.max(value ? 0.8 : 0, (value / high) * 100), height: 10 });
  return el(
    "ul",
    { class: "bars", "aria-label": title },
    ...rows.map(([label, value, words]) =>
      el("li", {}, el("span", { class: "bar-label" }, label), svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, bar(value)), el("span", { class: "bar-value" }, words)),
    ),
  );
}

export const RANGES = [[900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "24 h"], [604800, "7 d"]];

// Buttons for a time range; `choose` is called with its seconds.
export function rangeButtons(current, choose) {
  const group = el("div", { class: "ranges", role: "group", "aria-label": "Time range" });
  const buttons = RANGES.map(([span, label]) => el("button", { type: "button", "aria-pressed": String(span === current), onclick: () => pick(span) }, label));
  function pick(span) {
    RANGES.forEach(([each], at) => setAttr(buttons[at], "aria-pressed", each === span));
    choose(span);
  }
  group.append(...buttons);
  return group;
}
