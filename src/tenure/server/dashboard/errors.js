// Failures, grouped by what they have in common.
import { h } from "./dom.js";
import { get, ifOffered, post } from "./api.js";
import { count, cut, name, now, shortId, when } from "./format.js";
import { button, empty, link, number, quietHead, spark, table, th } from "./widgets.js";
import { bulk } from "./bulk.js";

const HOUR = 3600000,
  HOURS = 24;
const ORDERS = { __proto__: null, last: null, failures: (one) => one.count, died: (one) => one.dead };

export const title = () => "Errors";

export async function load({ query, signal }) {
  return ifOffered(get(["errors"], { queue: query.queue, cursor: query.cursor, limit: 50 }, { signal }));
}

export function view(data, page) {
  if (!data) return [h("h1", null, "Errors"), empty("This service does not group errors.")];
  const shown = page.query.muted ? [...data.errors] : data.errors.filter((one) => !one.muted);
  const by = ORDERS[page.query.sort];
  if (by) shown.sort((a, b) => by(b) - by(a));
  const muted = data.errors.length - data.errors.filter((one) => !one.muted).length;
  return [
    h(
      "div",
      { class: "title" },
      h("h1", null, "Errors"),
      page.query.queue
        ? link(["errors"], null, { class: "chosen" }, `queue: ${cut(page.query.queue, 40)} ×`)
        : null,
      h(
        "span",
        { class: "push" },
        "Sort by ",
        Object.keys(ORDERS).map((by) =>
          button(by, () => page.change({ sort: by === "last" ? null : by }), {
            class: "quiet",
            "aria-pressed": String(by === (page.query.sort || "last")),
          }),
        ),
      ),
      muted
        ? link(
            ["errors"],
            { ...page.query, muted: page.query.muted ? null : "shown" },
            { class: "quiet" },
            page.query.muted ? "Hide muted" : `Show ${count(muted)} muted`,
          )
        : null,
    ),
    shown.length
      ? h("section", { class: "card", "aria-label": "Error groups" }, list(shown, page))
      : empty("No errors. "),
    data.cursor || page.query.cursor
      ? h(
          "div",
          { class: "pager" },
          page.query.cursor ? link(["errors"], { ...page.query, cursor: null }, null, "First page") : null,
          data.cursor
            ? link(["errors"], { ...page.query, cursor: data.cursor }, { class: "next" }, "Next page")
            : null,
        )
      : null,
  ];
}

function list(found, page) {
  return table(
    "Error groups",
    [
      "Error",
      "Queue",
      th("Failures", "n"),
      th("Per hour", "", "Failures in each of the last 24 hours"),
      th("Died", "n", "Jobs that became dead; some may have been replayed or deleted since"),
      th("Last", "n"),
      th("First", "n"),
      "Sample",
      page.can("admin") ? quietHead("Actions") : null,
    ].filter((one) => one !== null),
    found.map((one) =>
      h(
        "tr",
        { key: one.group, class: one.muted ? "muted" : "" },
        h(
          "th",
          { scope: "row", class: "wrap" },
          link(
            ["queue", one.queue],
            { state: one.dead ? "dead" : null, error: one.group },
            { class: "strong dead" },
            h("bdi", null, cut(one.type || "error", 80)),
          ),
          h("div", { class: "message" }, h("bdi", null, cut(one.message || "", 200))),
          one.kind ? h("div", { class: "dim" }, name(one.kind, 80)) : null,
        ),
        h("td", null, link(["queue", one.queue], null, null, name(one.queue, 30))),
        number(one.count),
        h("td", null, trend(one)),
        number(one.dead, "dead"),
        h("td", { class: "n" }, when(one.last_at)),
        h("td", { class: "n" }, when(one.first_at)),
        h(
          "td",
          null,
          one.sample ? link(["job", one.sample], null, { class: "mono" }, shortId(one.sample)) : name(""),
        ),
        page.can("admin") ? h("td", { class: "n actions" }, buttons(one, page)) : null,
      ),
    ),
  );
}

/** Failures by hour, until now. */
function trend(one) {
  const hours = one.hours || [],
    ago = Math.max(0, Math.floor(now() / HOUR) - Math.floor(one.last_at / HOUR));
  const points = [...Array(HOURS).fill(0), ...hours, ...Array(Math.min(ago, HOURS)).fill(0)].slice(-HOURS);
  return spark(points, null, `failures by hour: ${points.join(", ")}`);
}

function buttons(one, page) {
  const filter = { queue: one.queue, state: "dead", error: one.group },
    of = cut(one.type || one.group, 30);
  const verb = one.muted ? "unmute" : "mute",
    about = h("bdi", null, cut([one.type, one.message].filter(Boolean).join(": "), 160));
  const many = [
    button("Replay…", () => bulk.start("replay", filter, page, about), {
      class: "quiet",
      "aria-label": `Replay the dead jobs of ${of}`,
    }),
    button("Delete…", () => bulk.start("delete", filter, page, about), {
      class: "quiet",
      "aria-label": `Delete the dead jobs of ${of}`,
    }),
  ];
  return [
    page.offersBulk() && one.dead ? many : null,
    button(
      one.muted ? "Unmute" : "Mute",
      () => page.act(() => post(["errors", one.group, verb]), one.muted ? "Shown again." : "Muted."),
      { class: "quiet", "aria-label": `${verb} ${of}` },
    ),
  ];
}
