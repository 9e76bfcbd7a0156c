// Numbers with their units, as short as they stay true.

export const NONE = "–";

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function count(value) {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) < 100000 ? whole.format(value) : short.format(value);
}

export function counted(value, one, many) {
  if (value === null || value === undefined) return NONE;
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let size = Math.abs(value);
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || size >= 100 ? 0 : 1;
  return `${value < 0 ? "−" : ""}${size.toFixed(digits)} ${units[unit]}`;
}

// The price of bytes for a month, with the prices of the configuration.
export function cost(value, prices) {
  if (value === null || value === undefined || !prices || !prices.storage_price) return null;
  const money = (value / 2 ** 30) * prices.storage_price;
  return `${Math.abs(money) < 100 ? money.toFixed(2) : whole.format(Math.round(money))} ${prices.currency} a month`;
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0 s";
  if (value < 1) return `${Math.max(1, Math.round(value * 1000))} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} days`;
}

export function rate(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0 rows/s";
  if (value < 0.1) return "< 0.1 rows/s";
  return `${value < 10 ? value.toFixed(1) : count(Math.round(value))} rows/s`;
}

export function signed(text, value) {
  return value > 0 ? `+${text}` : text;
}

// Times are of this browser's zone, or UTC; which, is always on the page.
const LOCAL = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
let zone = LOCAL;
let clock;
let minute;
let day;

export function zoneText() {
  return zone === "UTC" ? "UTC" : zone.replaceAll("_", " ");
}

export function zoneName() {
  return zone;
}

export function setZone(isUtc) {
  zone = isUtc ? "UTC" : LOCAL;
  const hours = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone: zone };
  clock = new Intl.DateTimeFormat("en-GB", { ...hours, second: "2-digit" });
  minute = new Intl.DateTimeFormat("en-GB", hours);
  day = new Intl.DateTimeFormat("en-GB", { day: "2-digit", month: "short", year: "numeric", timeZone: zone });
}

setZone(false);

// Seconds that the clock of the zone lags UTC, as `Date` counts them.
export function zoneShift(ms) {
  return zone === "UTC" ? 0 : new Date(ms).getTimezoneOffset() * 60;
}

export function isLocalUtc() {
  return ["UTC", "Etc/UTC", "GMT", "Etc/GMT"].includes(LOCAL);
}

// Logs may have any number as a time; a date reaches 100 million days from 1970.
const isTime = (ms) => typeof ms === "number" && Math.abs(ms) <= 8.64e15;

export function time(ms) {
  return isTime(ms) ? clock.format(ms) : NONE;
}

export function shortTime(ms) {
  return minute.format(ms);
}

export function moment(ms) {
  return isTime(ms) ? `${day.format(ms)}, ${clock.format(ms)}` : NONE;
}

export function ago(ms, nowMs) {
  if (ms === null || ms === undefined) return NONE;
  const past = Math.max(0, nowMs - ms) / 1000;
  return past < 1 ? "just now" : `${seconds(Math.round(past))} ago`;
}

// The time of day alone says enough of today.
export function timeOf(ms, nowMs) {
  return isTime(ms) && day.format(ms) === day.format(nowMs) ? time(ms) : moment(ms);
}
