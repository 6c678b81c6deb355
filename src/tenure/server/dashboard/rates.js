// What happened in a queue over time.
import { h, s } from "./dom.js";
import { get, ifOffered } from "./api.js";
import { count, dayAndHour, hourOfDay, jobs, span } from "./format.js";
import { empty, link } from "./widgets.js";

const SPANS = {
  __proto__: null,
  hour: ["minute", 60],
  "6 hours": ["minute", 360],
  day: ["minute", 1440],
  week: ["hour", 168],
  month: ["hour", 720],
};
const PER_MS = { minute: 60000, hour: 3600000 };
const WIDTH = 1000,
  HEIGHT = 150;

/** The points of the chosen time, one for each minute or hour. */
export async function loadRates(queue, query, signal) {
  const [per, length] = SPANS[query.span] || SPANS.hour;
  const step = PER_MS[per];
  const first = Math.floor(Date.now() / step) * step - (length - 1) * step;
  const found = await ifOffered(get(["rates"], { queue, per, since: first }, { signal }));
  if (!found) return null;
  const known = new Map((found.queues[queue]?.points || []).map((one) => [one.at, one]));
  const from = Math.floor(found.now / step) * step - (length - 1) * step;
  return {
    from,
    step,
    points: Array.from(
      { length },
      (_, n) =>
        known.get(from + n * step) || {
          at: from + n * step,
          enqueued: 0,
          claimed: 0,
          done: 0,
          failed: 0,
          dead: 0,
        },
    ),
  };
}

export function ratesView(queue, data, page) {
  if (!data) return empty("This service does not count rates.");
  const chosen = SPANS[page.query.span] ? page.query.span : "hour";
  const sum = (field) => data.points.reduce((all, one) => all + one[field], 0);
  return [
    h(
      "nav",
      { class: "states", "aria-label": "Time" },
      Object.keys(SPANS).map((one) =>
        link(
          ["queue", queue],
          { view: "rates", span: one === "hour" ? null : one },
          { "aria-current": one === chosen ? "page" : null },
          `last ${one}`,
        ),
      ),
    ),
    chart(
      `Jobs per ${data.step === 60000 ? "minute" : "hour"}`,
      data,
      [
        ["enqueued", "enqueued", "ready"],
        ["done", "done", "done"],
        ["failed", "failed", "dead"],
      ],
      count,
      `${jobs(sum("enqueued"))} enqueued, ${count(sum("done"))} done, ${count(sum("failed"))} failed, ${count(sum("dead"))} dead`,
    ),
    chart(
      "Wait until claimed",
      data,
      [
        ["wait_p50", "half of them", "ready"],
        ["wait_p99", "99%", "delayed"],
      ],
      span,
    ),
    chart(
      "Time to run",
      data,
      [
        ["run_p50", "half of them", "leased"],
        ["run_p99", "99%", "delayed"],
      ],
      span,
    ),
  ];
}

function chart(title, { from, step, points }, series, text, told = "") {
  const most = Math.max(0, ...series.flatMap(([field]) => points.map((one) => one[field] ?? 0)));
  const x = (n) => ((n / Math.max(1, points.length - 1)) * WIDTH).toFixed(1),
    y = (value) => (HEIGHT - 2 - (value / (most || 1)) * (HEIGHT - 8)).toFixed(1);
  const last = series.map(
    ([field, name]) =>
      `${name} ${text(points.findLast((one) => one[field] !== null && one[field] !== undefined)?.[field] ?? null)}`,
  );
  return h(
    "section",
    { class: "card chart", "aria-label": title, key: title },
    h(
      "div",
      { class: "card-head" },
      h("h2", null, title),
      h("span", { class: "dim" }, told),
      h(
        "span",
        { class: "push legend" },
        series.map(([, name, kind]) => h("span", { class: `key-${kind}` }, name)),
      ),
    ),
    h(
      "div",
      { class: "plot" },
      h("span", { class: "most dim" }, text(most)),
      s(
        "svg",
        {
          viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
          preserveAspectRatio: "none",
          role: "img",
          "aria-label": `${title}. ${told || last.join(", ")}`,
        },
        [0.25, 0.5, 0.75].map((part) =>
          s("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part }),
        ),
        series.map(([field, , kind]) =>
          s("path", { class: `line line-${kind}`, d: path(points, field, x, y) }),
        ),
      ),
    ),
    h(
      "div",
      { class: "times dim" },
      [0, 0.5, 1].map((part) =>
        h(
          "span",
          null,
          (points.length * step > 86400000 ? dayAndHour : hourOfDay)(
            from + Math.round((points.length - 1) * part) * step,
          ),
        ),
      ),
    ),
  );
}

/** A line that is interrupted where nothing is known. */
function path(points, field, x, y) {
  const parts = [];
  let drawing = false;
  points.forEach((one, n) => {
    const value = one[field];
    if (value === null || value === undefined) {
      drawing = false;
      return;
    }
    const alone = !drawing && (points[n + 1]?.[field] ?? null) === null; // not seen without a short line
    parts.push(`${drawing ? "L" : "M"} ${x(n)} ${y(value)}${alone ? " h -4 h 4" : ""}`);
    drawing = true;
  });
  return parts.join(" ") || "M 0 0";
}
