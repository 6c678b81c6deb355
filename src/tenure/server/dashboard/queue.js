// One queue: its jobs by state, its tenants, groups and limits.
import { h } from "./dom.js";
import { get } from "./api.js";
import { count, cut, exact, localTime, name, now, setClock, span, timeOfDay } from "./format.js";
import { NAMES, age, button, empty, link, meter, number, quietHead, stack, table, th } from "./widgets.js";
import { bulk } from "./bulk.js";
import { jobTable, listJobs, pager } from "./job_list.js";
import { editLimit, limits, scopePause } from "./limits.js";
import { attention } from "./overview.js";
import { loadRates, ratesView } from "./rates.js";

const PAGE = 50,
  NAMED = 1000;
const TABS = ["pending", "leased", "waiting", "done", "dead", "cancelled"];
const LINKS = {
  __proto__: null,
  "": "Stuck",
  dead: "Dead",
  errors: "Errors",
  pending: "No worker",
  waiting: "Stranded",
};
const FINAL = ["done", "dead", "cancelled"];
const FILTERS = [
  "tenant",
  "group",
  "kind",
  "worker",
  "error",
  "created_after",
  "created_before",
  "finished_after",
  "finished_before",
];

export const title = (page) => page.path[1];

export async function load(page) {
  const queue = page.path[1],
    view = page.query.view in lists ? page.query.view : "jobs",
    { signal } = page;
  const [overview, limits, listed] = await Promise.all([
    get(["overview"], null, { signal }),
    get(["queues", queue, "limits"], null, { signal }),
    lists[view](queue, page),
  ]);
  setClock(overview.now);
  const row =
    overview.queues.find((one) => one.queue === queue) || (await get(["queues", queue], null, { signal }));
  return { row, limits, listed, told: overview.attention.filter((one) => one.queue === queue) };
}

const lists = {
  __proto__: null,
  jobs: (queue, page) =>
    listJobs(
      {
        queue,
        ...filters(page.query),
        state: page.query.state || "pending",
        cursor: page.query.cursor,
        limit: PAGE,
      },
      page.signal,
    ),
  tenants: async (queue, { query, signal }) =>
    get(["queues", queue, "tenants"], { limit: NAMED, after: query.after, waits: true }, { signal }),
  groups: async (queue, { query, signal, sees, tenants }) => {
    const tenant = query.tenant ?? (sees("group totals") ? undefined : tenants()?.[0]);
    return tenant !== undefined
      ? get(["queues", queue, "groups"], { tenant, limit: NAMED, after: query.after }, { signal })
      : get(["queues", queue, "group-totals"], { limit: NAMED, after: query.after }, { signal });
  },
  limits: async () => null,
  rates: (queue, { query, signal }) => loadRates(queue, query, signal),
};

const filters = (query) =>
  Object.fromEntries(FILTERS.filter((one) => query[one]).map((one) => [one, query[one]]));

export function view(data, page) {
  const { row } = data,
    queue = page.path[1],
    shown = page.query.view in lists ? page.query.view : "jobs";
  const counts = { ...row, pending: row.ready + row.delayed };
  return [
    h(
      "div",
      { class: "title" },
      h("h1", null, name(queue, 120)),
      row.paused ? h("span", { class: "chip paused" }, "paused") : null,
      page.can("admin") ? scopePause(queue, {}, row.paused, page, { "aria-label": null }) : null,
    ),
    data.told.length ? attention(data.told, 0, (one) => LINKS[one.link]) : null,
    facts(row),
    h(
      "nav",
      { class: "tabs", "aria-label": "Parts of the queue" },
      ["jobs", "tenants", "groups", "rates", "limits"].filter((one) => page.sees(one)).map((one) =>
        tab(
          one,
          one === shown,
          ["queue", queue],
          one === "jobs" ? null : { view: one },
          one === "limits" && data.limits.length ? count(data.limits.length) : null,
        ),
      ),
    ),
    shown === "jobs" ? jobList(queue, counts, data.listed, page) : null,
    shown === "tenants" ? tenants(queue, data, page) : null,
    shown === "groups" ? groups(queue, data.listed, page) : null,
    shown === "rates" ? ratesView(queue, data.listed, page) : null,
    shown === "limits" ? limits(queue, data, page) : null,
  ];
}

const tab = (text, current, path, query, more) =>
  link(
    path,
    query,
    { "aria-current": current ? "page" : null },
    text,
    more ? h("span", { class: "dim" }, ` ${more}`) : null,
  );

function facts(row) {
  const limit = row.limit ?? null;
  const shown = [
    ["Ready", count(row.ready)],
    ["Oldest ready", row.oldest_ready_at ? span(now() - row.oldest_ready_at) : "–"],
    ["Running", limit === null ? count(row.leased) : meter(row.leased, limit)],
    ["Delayed", count(row.delayed)],
    ["Waiting", count(row.waiting)],
    ["Dead", count(row.dead)],
    row.workers === null || row.workers === undefined ? null : ["Workers", count(row.workers)],
    row.wait_p50 === null || row.wait_p50 === undefined
      ? null
      : ["Wait p50 · p99", `${span(row.wait_p50)} · ${span(row.wait_p99)}`],
    row.run_p50 === null || row.run_p50 === undefined
      ? null
      : ["Run p50 · p99", `${span(row.run_p50)} · ${span(row.run_p99)}`],
  ];
  return h(
    "dl",
    { class: "facts" },
    shown.filter(Boolean).map(([label, value]) => h("div", null, h("dt", null, label), h("dd", null, value))),
  );
}

// Jobs -------------------------------------------------------------------------------------------

function jobList(queue, counts, found, page) {
  const state = page.query.state || "pending",
    chosen = filters(page.query);
  return h(
    "section",
    { class: "card", "aria-label": "Jobs" },
    h(
      "nav",
      { class: "states", "aria-label": "States" },
      TABS.map((one) =>
        link(
          ["queue", queue],
          { ...chosen, state: one === "pending" ? null : one },
          { class: one, "aria-current": one === state ? "page" : null },
          NAMES[one],
          h("b", null, count(counts[one])),
        ),
      ),
    ),
    filterForm(queue, page, chosen),
    bulk.buttons(
      { queue, state, ...chosen },
      state,
      page,
      state === "dead" && page.sees("errors")
        ? link(["errors"], { queue }, { class: "quiet" }, "By cause")
        : null,
      counts.delayed > 0,
    ),
    jobTable(found.jobs, page, {
      queue,
      none: chosen.error ? "The last error of no job in this state is of this group." : "No jobs here.",
    }),
    pager(found, page),
  );
}

function filterForm(queue, page, chosen) {
  const moment = FINAL.includes(page.query.state) ? "finished" : "created",
    times = [`${moment}_after`, `${moment}_before`];
  const changed = (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget.closest ? event.currentTarget : event.target);
    const next = Object.fromEntries(
      ["tenant", "group", "kind"].map((one) => [one, String(form.get(one) || "").trim() || null]),
    );
    for (const one of times) next[one] = form.get(one) ? new Date(form.get(one)).getTime() : null;
    page.change({ ...next, cursor: null });
  };
  const others = Object.entries(chosen).filter(
    ([one]) => !["tenant", "group", "kind", ...times].includes(one),
  );
  return h(
    "form",
    { class: "filters", role: "search", "aria-label": "Filter the jobs", on: { submit: changed } },
    ["tenant", "group", "kind"].map((one) =>
      h(
        "label",
        null,
        h("span", null, one),
        h("input", {
          name: one,
          value: chosen[one] || "",
          autocomplete: "off",
          spellcheck: "false",
          maxlength: 500,
        }),
      ),
    ),
    times.map((one, n) =>
      h(
        "label",
        null,
        h("span", null, n ? "until" : `${moment} from`),
        h("input", {
          name: one,
          type: "datetime-local",
          class: "time",
          value: chosen[one] ? localTime(Number(chosen[one])) : "",
        }),
      ),
    ),
    h("button", { type: "submit", class: "quiet" }, "Filter"),
    others.map(([one, value]) =>
      link(
        ["queue", queue],
        { ...page.query, [one]: null, cursor: null },
        { class: "chosen", title: "Remove this filter" },
        `${one}: ${/_(after|before)$/.test(one) ? timeOfDay(Number(value)) : cut(value, 40)} ×`,
      ),
    ),
    Object.keys(chosen).length
      ? link(["queue", queue], { state: page.query.state }, { class: "quiet" }, "Clear all")
      : null,
  );
}

// Tenants and groups -----------------------------------------------------------------------------

const percent = (part) => (part > 0 && part < 0.01 ? "<1%" : `${Math.round(part * 100)}%`);
const depth = (one) => one.ready + one.delayed + one.waiting + one.leased;

function tenants(queue, { listed, limits: known }, page) {
  if (!listed.length) return empty("No tenants.");
  const rows = [...listed].sort((a, b) => depth(b) - depth(a) || (a.tenant < b.tenant ? -1 : 1));
  const running = rows.reduce((sum, one) => sum + one.leased, 0);
  const weightOf = (tenant) => known.find((one) => one.tenant === tenant && !one.group)?.weight ?? 1;
  const weights = rows
    .filter((one) => one.leased || one.ready)
    .reduce((sum, one) => sum + weightOf(one.tenant), 0);
  const admin = page.can("admin");
  return h(
    "section",
    { class: "card", "aria-label": "Tenants" },
    table(
      "Tenants by depth",
      [
        "Tenant",
        quietHead("By state", "mix"),
        th("Ready", "n"),
        th("Oldest", "n", "How long the oldest ready job has waited; of the 100 tenants with most ready jobs"),
        th("Running", "n"),
        th("Share", "n", "Of what runs now; in brackets: by weight"),
        th("Delayed", "n"),
        th("Waiting", "n"),
        th("Dead", "n"),
        th("Done", "n"),
        admin ? quietHead("Actions") : null,
      ].filter(Boolean),
      rows.map((one) => {
        const limit = known.find((it) => it.tenant === one.tenant && !it.group) || {};
        return h(
          "tr",
          { key: one.tenant, class: limit.paused ? "paused" : "" },
          h(
            "th",
            { scope: "row" },
            link(
              ["queue", queue],
              { tenant: one.tenant },
              { class: "strong" },
              one.tenant ? name(one.tenant) : "(no tenant)",
            ),
            limit.paused ? h("span", { class: "chip paused" }, "paused") : null,
          ),
          h(
            "td",
            { class: "mix" },
            stack(
              ["waiting", "delayed", "ready", "leased", "dead"].map((state) => [state, one[state]]),
              `${depth(one)} unfinished`,
            ),
          ),
          number(one.ready, "ready"),
          age(one.wait_ms),
          h(
            "td",
            { class: "n" },
            limit.concurrency === undefined ? count(one.leased) : meter(one.leased, limit.concurrency),
          ),
          h(
            "td",
            { class: "n" },
            running ? percent(one.leased / running) : "–",
            h(
              "span",
              { class: "dim" },
              weights && (one.leased || one.ready)
                ? ` (${percent(weightOf(one.tenant) / weights)})`
                : "",
            ),
          ),
          number(one.delayed),
          number(one.waiting),
          number(one.dead, "dead"),
          number(one.done),
          admin
            ? h(
                "td",
                { class: "n" },
                scopePause(queue, { tenant: one.tenant }, limit.paused, page),
                " ",
                button("Limits", () => editLimit(queue, { tenant: one.tenant }, limit, page), {
                  class: "quiet",
                  "aria-label": `Limits of ${cut(one.tenant, 40)}`,
                }),
              )
            : null,
        );
      }),
    ),
    listed.length >= NAMED
      ? more(`The first ${exact(NAMED)} by name, sorted by depth.`, listed.at(-1).tenant, page)
      : null,
  );
}

function groups(queue, listed, page) {
  if (!listed.length) return empty("No groups.");
  const total = (one) => one.unfinished ?? depth(one);
  const rows = [...listed].sort((a, b) => total(b) - total(a) || (a.group < b.group ? -1 : 1));
  return h(
    "section",
    { class: "card", "aria-label": "Groups" },
    table(
      "Groups by depth",
      ["Group", th("Unfinished", "n"), th("Finished", "n")],
      rows.map((one) =>
        h(
          "tr",
          { key: one.group },
          h(
            "th",
            { scope: "row" },
            link(
              ["queue", queue],
              { group: one.group },
              { class: "strong" },
              one.group ? name(one.group) : "(no group)",
            ),
          ),
          number(total(one)),
          number(one.finished ?? one.done + one.dead + one.cancelled),
        ),
      ),
    ),
    listed.length >= NAMED
      ? more(`The first ${exact(NAMED)} by name, sorted by depth.`, listed.at(-1).group, page)
      : null,
  );
}

const more = (text, after, page) =>
  h(
    "div",
    { class: "pager" },
    h("span", { class: "dim" }, text),
    link(page.path, { ...page.query, after }, { class: "next" }, "Next names"),
  );
