// What the search box finds.
import { h } from "./dom.js";
import { get } from "./api.js";
import { name } from "./format.js";
import { empty, link } from "./widgets.js";

export const title = () => "Search";
export const load = async ({ query, signal }) =>
  query.q ? get(["search"], { q: query.q }, { signal }) : { jobs: [], queues: [], tenants: [] };

/** The only result, if there is one. */
export function only(found) {
  const all = [...found.jobs.map((id) => ["job", id]), ...found.queues.map((queue) => ["queue", queue])];
  return all.length + found.tenants.length === 1 && all.length === 1 ? all[0] : null;
}

export function view(found, page) {
  const part = (title, rows) =>
    rows.length
      ? h(
          "section",
          { class: "card", "aria-label": title },
          h("h2", null, title),
          h(
            "ul",
            { class: "found" },
            rows.map((row) => h("li", null, row)),
          ),
        )
      : null;
  const parts = [
    part(
      "Jobs",
      found.jobs.map((id) => link(["job", id], null, { class: "mono" }, name(id, 100))),
    ),
    part(
      "Queues",
      found.queues.map((queue) => link(["queue", queue], null, null, name(queue, 100))),
    ),
    part(
      "Tenants",
      found.tenants.map((one) =>
        link(
          ["queue", one.queue],
          { tenant: one.tenant },
          null,
          name(one.tenant, 60),
          " in ",
          name(one.queue, 60),
        ),
      ),
    ),
  ].filter(Boolean);
  return [
    h("h1", null, "Search: ", name(page.query.q, 100)),
    parts.length
      ? parts
      : empty(
          "Nothing is found. Search for the start of a job's id, a part of a queue's name, or the name of a tenant.",
        ),
  ];
}
