// Numbers, times and texts as people read them.
import { h } from "./dom.js";

const whole = new Intl.NumberFormat("en-US");
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const moment = new Intl.DateTimeFormat(undefined, {
  dateStyle: "medium",
  timeStyle: "long", // with the zone
});
const hours = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const days = new Intl.DateTimeFormat(undefined, {
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
});
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const date = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

const UNITS = [
  ["d", 86400000],
  ["h", 3600000],
  ["min", 60000],
  ["s", 1000],
];

let skew = 0; // of the service's clock, in milliseconds

/** Set this clock by the service's. */
export function setClock(now) {
  skew = now - Date.now();
}

export const now = () => Date.now() + skew;
export const count = (n) =>
  n === null || n === undefined ? "–" : n < 100000 ? whole.format(n) : short.format(n);
export const exact = (n) => whole.format(n);
export const jobs = (n) => `${count(n)} job${n === 1 ? "" : "s"}`;

/** A time of today, or with its date. */
export function timeOfDay(ms) {
  const today = new Date(now()).toDateString() === new Date(ms).toDateString();
  return today ? clock.format(ms) : `${date.format(ms)} ${clock.format(ms)}`;
}

/** A time as a field of a form has it. */
export function localTime(ms) {
  const date = new Date(ms - new Date(ms).getTimezoneOffset() * 60000);
  return Number.isNaN(date.getTime()) ? "" : date.toISOString().slice(0, 16);
}

/** The zone that times are shown in. */
export const zone = () => new Intl.DateTimeFormat().resolvedOptions().timeZone;
export const hourOfDay = (ms) => hours.format(ms);
export const dayAndHour = (ms) => days.format(ms);

/** A duration: "4 s", "2 h 5 min". */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  ms = Math.max(0, ms);
  if (ms < 1) return ms === 0 ? "0 ms" : `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10000) return `${(ms / 1000).toFixed(1)} s`;
  const at = UNITS.findIndex(([, size]) => ms >= size);
  const [unit, size] = UNITS[at];
  const rest = at + 1 < UNITS.length ? Math.floor((ms % size) / UNITS[at + 1][1]) : 0;
  return `${Math.floor(ms / size)} ${unit}${rest ? ` ${rest} ${UNITS[at + 1][0]}` : ""}`;
}

/** A duration in its largest unit, for narrow columns: "4.0 s", "2 h". */
export const brief = (ms) => (ms >= 60000 ? span(ms).split(" ").slice(0, 2).join(" ") : span(ms));

/** A time, relative to now: "4 s ago", "in 2 h". */
export function when(ms) {
  if (ms === null || ms === undefined) return h("span", { class: "dim" }, "–");
  const away = ms - now();
  const text = Math.abs(away) < 1000 ? "now" : away < 0 ? `${rounded(-away)} ago` : `in ${rounded(away)}`;
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return h("span", null, String(ms));
  return h("time", { datetime: date.toISOString(), title: moment.format(date) }, text);
}

const rounded = (ms) => span(Math.round(ms / 1000) * 1000).replace(".0 s", " s");

export function bytes(n) {
  if (n < 1000) return `${n} bytes`;
  return n < 1e6 ? `${(n / 1e3).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`;
}

// Characters that cannot be seen, or that change the order of others.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** The text with characters that cannot be seen written as escapes. */
export function visible(text) {
  return text.replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** The start of a text. */
export function cut(text, most) {
  const start = text.length > most ? text.slice(0, most) : text;
  return visible(start) + (text.length > most ? "…" : "");
}

/** An id where there is little room. The ids of jobs of one moment begin with the same characters. */
export const shortId = (id) =>
  h(
    "bdi",
    { class: "name", title: cut(id, 500) },
    id.length > 20 ? `${cut(id, 8)}${visible(id.slice(-6))}` : visible(id),
  );

/** A name that came from a job: its direction does not affect what is around it. */
export function name(text, most = 60) {
  if (!text) return h("span", { class: "dim" }, "–");
  return h("bdi", { class: "name", title: text.length > 24 ? cut(text, 500) : null }, cut(text, most));
}
