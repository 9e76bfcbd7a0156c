// Pictures of numbers as SVG, drawn from values; each has the same in words for who cannot see it.

import { el, svg, setAttr } from "./dom.js";

const SPARK_SAMPLES = 30;

// A line through equally spaced values; null leaves a hole.
export function linePath(values, width, height, low, high) {
  const span = high - low || 1;
  const step = values.length > 1 ? width / (values.length - 1) : 0;
  let path = "";
  let isDown = false;
  values.forEach((value, at) => {
    if (value === null || value === undefined) {
      isDown = false;
      return;
    }
    const y = height - ((value - low) / span) * height;
    path += `${isDown ? "L" : "M"}${(at * step).toFixed(1)} ${y.toFixed(1)}`;
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
      const padded = [...Array(Math.max(0, SPARK_SAMPLES - values.length)).fill(null), ...values];
      const high = Math.max(1, ...values.map((value) => value || 0));
      setAttr(line, "d", linePath(padded, 100, 20, 0, high));
    },
  };
}

// Points are [time in ms, value]; values of null are left out.
export function areaChart(points, { title, format, time }) {
  const known = points.filter((point) => point[1] !== null && point[1] !== undefined);
  if (known.length < 2) return el("p", { class: "empty small" }, "Drawn once there are two measurements.");
  const [first, last] = [known[0], known[known.length - 1]];
  const values = known.map((point) => point[1]);
  const high = Math.max(...values);
  const low = Math.min(...values);
  const base = low > high * 0.8 && low < high ? low - (high - low) * 0.25 : 0;
  const span = last[0] - first[0] || 1;
  const top = high === base ? base + 1 : high;
  const at = ([ms, value]) => [((ms - first[0]) / span) * 600, 150 - ((value - base) / (top - base)) * 140];
  const spots = known.map(at);
  const line = spots.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  return el(
    "figure",
    { class: "chart" },
    svg(
      "svg",
      { viewBox: "0 0 600 152", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: from ${format(first[1])} to ${format(last[1])}, at most ${format(high)}` },
      svg("path", { class: "chart-grid", d: "M0 10H600M0 80H600M0 150H600" }),
      svg("path", { class: "chart-area", d: `${line}L600 152L0 152Z` }),
      svg("path", { class: "chart-line", d: line }),
    ),
    el("span", { class: "chart-top" }, format(top)),
    el("span", { class: "chart-base" }, format(Math.max(0, Math.round(base)))),
    el("figcaption", {}, el("span", {}, time(first[0])), el("span", {}, time(last[0]))),
  );
}

// Bars are [label, value, words].
export function bars(rows, title) {
  const high = Math.max(1, ...rows.map((row) => row[1]));
  return el(
    "ul",
    { class: "bars", "aria-label": title },
    ...rows.map(([label, value, words]) =>
      el(
        "li",
        {},
        el("span", { class: "bar-label" }, label),
        svg(
          "svg",
          { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
          svg("rect", { class: "bar", width: Math.max(value ? 0.8 : 0, (value / high) * 100), height: 10, rx: 1 }),
        ),
        el("span", { class: "bar-value" }, words),
      ),
    ),
  );
}
