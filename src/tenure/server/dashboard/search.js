// What the search box finds.
import { h } from "./dom.js";
import { get } from "./api.js";
import { name } from "./format.js";
import { empty, link } from "./widgets.js";

export const title = () => "Search";
export const load = async ({ query, signal }) =>
  query.q ? get(["search"], { q: query.q }, { signal }) : NOTHING;
export const once = true; // a search is not repeated
const NOTHING = { jobs: [], keys: [], queues: [], tenants: [], groups: [], kinds: [] };

/** The only result, if there is one. */
export function only(found) {
  const jobs = new Set([...found.jobs, ...found.keys]);
  const all = [...[...jobs].map((id) => ["job", id]), ...found.queues.map((queue) => ["queue", queue])];
  const others = found.tenants.length + found.groups.length + found.kinds.length;
  return all.length === 1 && !others ? all[0] : null;
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
  const within = (title, rows, field) =>
    part(
      title,
      rows.map((one) =>
        link(["queue", one.queue], { [field]: one[field] }, null, name(one[field]), " in ", name(one.queue)),
      ),
    );
  const parts = [
    part(
      "Jobs",
      found.jobs.map((id) => link(["job", id], null, { class: "mono" }, name(id, 100))),
    ),
    part(
      "Jobs with this unique key",
      found.keys.map((id) => link(["job", id], null, { class: "mono" }, name(id, 100))),
    ),
    part(
      "Queues",
      found.queues.map((queue) => link(["queue", queue], null, null, name(queue, 100))),
    ),
    within("Tenants", found.tenants, "tenant"),
    within("Groups", found.groups, "group"),
    within("Kinds, among the newest jobs", found.kinds, "kind"),
  ].filter(Boolean);
  return [
    h("h1", null, "Search: ", name(page.query.q, 100)),
    parts.length
      ? parts
      : empty(
          "Nothing found. Search for the start of a job's id, a unique key of a job that has not finished, " +
            "a part of a queue's name, or the name of a tenant, a group or a kind.",
        ),
  ];
}
