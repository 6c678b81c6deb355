// Who did what.
import { h } from "./dom.js";
import { get, ifOffered } from "./api.js";
import { count, cut, name, when } from "./format.js";
import { empty, link, table, th } from "./widgets.js";
import { bulk } from "./bulk.js";

export const title = () => "Audit";

export async function load({ query, signal }) {
  const [audit, runs] = await Promise.all([
    ifOffered(get(["audit"], { cursor: query.cursor, limit: 100 }, { signal })),
    ifOffered(get(["bulk"], null, { signal })).catch(() => null),
  ]);
  return { audit, runs: runs && (runs.bulk || runs.runs || runs) };
}

export function view({ audit, runs }, page) {
  if (!audit) return [h("h1", null, "Audit"), empty("This service keeps no audit log.")];
  return [
    h("h1", null, "Audit"),
    Array.isArray(runs) && runs.length && !page.query.cursor
      ? h(
          "section",
          { class: "card", "aria-label": "Bulk actions" },
          h("h2", null, "Bulk actions"),
          bulk.list(runs),
        )
      : null,
    audit.entries.length
      ? h("section", { class: "card", "aria-label": "Entries" }, list(audit.entries))
      : empty("Nobody has changed anything by hand."),
    audit.cursor || page.query.cursor
      ? h(
          "div",
          { class: "pager" },
          page.query.cursor ? link(["audit"], null, null, "Newest") : null,
          audit.cursor ? link(["audit"], { cursor: audit.cursor }, { class: "next" }, "Older") : null,
        )
      : null,
  ];
}

function list(entries) {
  return table(
    "Audit",
    ["When", "Who", "Did", "Queue", "What", th("Jobs", "n"), "Reason"],
    entries.map((one, n) =>
      h(
        "tr",
        { key: `${one.at} ${n}` },
        h("td", null, when(one.at)),
        h("th", { scope: "row" }, one.by ? name(one.by, 50) : h("span", { class: "dim" }, "no name")),
        h("td", null, cut(one.action, 60)),
        h("td", null, one.queue ? link(["queue", one.queue], null, null, name(one.queue, 30)) : name("")),
        h("td", { class: "wrap" }, target(one)),
        h("td", { class: "n" }, count(one.count)),
        h("td", { class: "wrap" }, name(one.reason, 200)),
      ),
    ),
  );
}

function target(one) {
  const filter =
    one.filter && Object.entries(one.filter).filter(([, value]) => value !== null && value !== "");
  if (filter && filter.length)
    return h(
      "bdi",
      null,
      cut(
        filter
          .map(([key, value]) => `${key}: ${typeof value === "object" ? JSON.stringify(value) : value}`)
          .join(", "),
        160,
      ),
    );
  return name(one.target, 80);
}
