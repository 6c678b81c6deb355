// One queue: its jobs by state, its tenants, groups and limits.
import { h } from "./dom.js";
import { Problem, del, get, post, put } from "./api.js";
import { count, cut, exact, jobs as jobsText, name, now, setClock, span, timeOfDay, when } from "./format.js";
import { NAMES, ask, button, chip, empty, field, link, meter, number, quietHead, stack, table, th } from "./widgets.js";
import { bulk } from "./bulk.js";
import { loadRates, ratesView } from "./rates.js";

const PAGE = 50, NAMED = 1000;
const TABS = ["pending", "leased", "waiting", "done", "dead", "cancelled"];
const FILTERS = ["tenant", "group", "kind", "worker", "error", "created_after", "created_before", "finished_after", "finished_before"];

export const title = (page) => page.path[1];

export async function load(page) {
  const queue = page.path[1], view = page.query.view in lists ? page.query.view : "jobs", { signal } = page;
  const [overview, limits, listed] = await Promise.all([
    get(["overview"], null, { signal }), get(["queues", queue, "limits"], null, { signal }), lists[view](queue, page)]);
  setClock(overview.now);
  const row = overview.queues.find((one) => one.queue === queue);
  if (!row) return { row: await get(["queues", queue], null, { signal }), limits, listed };
  return { row, limits, listed };
}

const lists = {
  __proto__: null,
  jobs: (queue, page) => listJobs({ queue, ...filters(page.query), state: page.query.state || "pending", cursor: page.query.cursor, limit: PAGE }, page.signal),
  tenants: async (queue, { query, signal }) => get(["queues", queue, "tenants"], { limit: NAMED, after: query.after }, { signal }),
  groups: async (queue, { query, signal }) => query.tenant !== undefined
    ? get(["queues", queue, "groups"], { tenant: query.tenant, limit: NAMED, after: query.after }, { signal })
    : get(["queues", queue, "group-totals"], { limit: NAMED, after: query.after }, { signal }),
  limits: async () => null,
  rates: (queue, { query, signal }) => loadRates(queue, query, signal),
};

const filters = (query) => Object.fromEntries(FILTERS.filter((one) => query[one]).map((one) => [one, query[one]]));

export async function listJobs(query, signal) {
  try {
    return await get(["jobs"], { summary: true, ...query }, { signal });
  } catch (error) {
    if (error instanceof Problem && error.field === "summary") return get(["jobs"], query, { signal });
    throw error;
  }
}

export function view(data, page) {
  const { row } = data, queue = page.path[1], shown = page.query.view in lists ? page.query.view : "jobs";
  const counts = { ...row, pending: row.ready + row.delayed };
  return [
    h("div", { class: "title" },
      h("h1", null, name(queue, 120)), row.paused ? h("span", { class: "chip paused" }, "paused") : null,
      page.can("admin") ? pauseButton(queue, row, page) : null),
    facts(row),
    h("nav", { class: "tabs", "aria-label": "Parts of the queue" },
      ["jobs", "tenants", "groups", "rates", "limits"].map((one) => tab(one, one === shown, ["queue", queue], one === "jobs" ? null : { view: one },
        one === "limits" && data.limits.length ? count(data.limits.length) : null))),
    shown === "jobs" ? jobList(queue, counts, data.listed, page) : null,
    shown === "tenants" ? tenants(queue, data, page) : null,
    shown === "groups" ? groups(queue, data.listed, page) : null,
    shown === "rates" ? ratesView(queue, data.listed, page) : null,
    shown === "limits" ? limits(queue, data, page) : null,
  ];
}

const tab = (text, current, path, query, more) =>
  link(path, query, { "aria-current": current ? "page" : null }, text, more ? h("span", { class: "dim" }, ` ${more}`) : null);

function facts(row) {
  const limit = row.limit ?? null;
  const shown = [["Ready", count(row.ready)], ["Oldest ready", row.oldest_ready_at ? span(now() - row.oldest_ready_at) : "–"],
    ["Running", limit === null ? count(row.leased) : meter(row.leased, limit)], ["Delayed", count(row.delayed)], ["Waiting", count(row.waiting)],
    ["Dead", count(row.dead)], row.workers === null || row.workers === undefined ? null : ["Workers", count(row.workers)],
    row.wait_p50 === null || row.wait_p50 === undefined ? null : ["Wait p50 · p99", `${span(row.wait_p50)} · ${span(row.wait_p99)}`],
    row.run_p50 === null || row.run_p50 === undefined ? null : ["Run p50 · p99", `${span(row.run_p50)} · ${span(row.run_p99)}`]];
  return h("dl", { class: "facts" }, shown.filter(Boolean).map(([label, value]) => h("div", null, h("dt", null, label), h("dd", null, value))));
}

function pauseButton(queue, row, page) {
  const verb = row.paused ? "resume" : "pause";
  return button(row.paused ? "Resume" : "Pause", () => page.act(() => post(["queues", queue, verb], {}), row.paused ? "Resumed." : "Paused."));
}

// Jobs -------------------------------------------------------------------------------------------

function jobList(queue, counts, found, page) {
  const state = page.query.state || "pending", chosen = filters(page.query);
  return h("section", { class: "card", "aria-label": "Jobs" },
    h("nav", { class: "states", "aria-label": "States" }, TABS.map((one) =>
      link(["queue", queue], { ...chosen, state: one === "pending" ? null : one }, { class: one, "aria-current": one === state ? "page" : null },
        NAMES[one], h("b", null, count(counts[one]))))),
    filterForm(queue, page, chosen),
    bulk.buttons({ queue, state, ...chosen }, state, page),
    jobTable(found.jobs, page, { queue }),
    pager(found, page));
}

function filterForm(queue, page, chosen) {
  const changed = (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget.closest ? event.currentTarget : event.target);
    const next = Object.fromEntries(["tenant", "group", "kind"].map((one) => [one, String(form.get(one) || "").trim() || null]));
    page.change({ ...next, cursor: null });
  };
  const others = Object.entries(chosen).filter(([one]) => !["tenant", "group", "kind"].includes(one));
  return h("form", { class: "filters", role: "search", "aria-label": "Filter the jobs", on: { submit: changed } },
    ["tenant", "group", "kind"].map((one) => h("label", null, h("span", null, one),
      h("input", { name: one, value: chosen[one] || "", autocomplete: "off", spellcheck: "false", maxlength: 500 }))),
    h("button", { type: "submit", class: "quiet" }, "Filter"),
    others.map(([one, value]) => link(["queue", queue], { ...page.query, [one]: null, cursor: null }, { class: "chosen", title: "Remove this filter" }, `${one}: ${cut(value, 40)} ×`)),
    Object.keys(chosen).length ? link(["queue", queue], { state: page.query.state }, { class: "quiet" }, "Clear all") : null);
}

/** A list of jobs. */
export function jobTable(found, page, { queue = null } = {}) {
  if (!found.length) return empty("No jobs here.");
  const some = (one) => found.some((job) => job[one]);
  const kinds = some("kind"), tenanted = some("tenant"), grouped = some("group"), ended = some("finished_at");
  return table("Jobs", ["Job", queue ? null : "Queue", kinds ? "Kind" : null, tenanted ? "Tenant" : null, grouped ? "Group" : null, "State",
    th("Attempts", "n"), th("Created", "n"), ended ? th("Finished", "n") : null, ended ? th("Took", "n", "The last attempt") : null, "About"].filter(Boolean),
  found.map((job) => h("tr", { key: job.id },
    h("th", { scope: "row" }, link(["job", job.id], null, { class: "mono" }, name(job.id, 36))),
    queue ? null : h("td", null, link(["queue", job.queue], null, null, name(job.queue, 30))),
    kinds ? h("td", null, name(job.kind, 40)) : null,
    tenanted ? h("td", null, job.tenant ? link(["queue", job.queue], { ...page.query, tenant: job.tenant, cursor: null }, null, name(job.tenant, 30)) : name("")) : null,
    grouped ? h("td", null, job.group ? link(["queue", job.queue], { ...page.query, group: job.group, cursor: null }, null, name(job.group, 30)) : name("")) : null,
    h("td", null, chip(shownState(job)), job.progress ? ` ${job.progress}%` : null),
    h("td", { class: `n ${job.attempts > 1 ? "late" : ""}` }, `${job.attempts} / ${job.max_attempts}`),
    h("td", { class: "n" }, when(job.created_at)),
    ended ? h("td", { class: "n" }, when(job.finished_at)) : null,
    ended ? h("td", { class: "n" }, job.started_at && job.finished_at ? span(job.finished_at - job.started_at) : "–") : null,
    h("td", { class: "about" }, aboutJob(job)))));
}

export const shownState = (job) => job.state !== "pending" ? job.state : job.run_at > now() ? "delayed" : "ready";

function aboutJob(job) {
  const error = job.error || (job.errors && job.errors.at(-1));
  if (error && job.state !== "done") return h("span", { class: "dead" }, h("bdi", null, cut(`${error.type ? `${error.type}: ` : ""}${error.message || ""}`, 120)));
  if (job.state === "leased") return h("span", null, h("bdi", null, cut(job.worker || "", 50)), " since ", when(job.started_at));
  if (job.state === "pending" && job.run_at > now()) return h("span", null, "due ", when(job.run_at));
  const preview = job.payload_preview ?? (job.payload === undefined || job.payload === null ? "" : JSON.stringify(job.payload));
  return h("span", { class: "dim mono" }, h("bdi", null, cut(preview, 100)));
}

/** How far a list looked, and links to the rest. */
export function pager(found, page) {
  const looked = found.scanned !== undefined && found.scanned !== null && found.cursor
    ? `Looked at ${jobsText(found.scanned)}${found.scanned_to ? `, back to ${timeOfDay(found.scanned_to)}` : ""}.` : "";
  if (!found.cursor && !page.query.cursor) return null;
  return h("div", { class: "pager" },
    page.query.cursor ? link(page.path, { ...page.query, cursor: null }, null, "First page") : null,
    h("span", { class: "dim" }, looked),
    found.cursor ? link(page.path, { ...page.query, cursor: found.cursor }, { class: "next" }, found.jobs.length ? "Next page" : "Go on looking") : null);
}

// Tenants and groups -----------------------------------------------------------------------------

const depth = (one) => one.ready + one.delayed + one.waiting + one.leased;

function tenants(queue, { listed, limits: known }, page) {
  if (!listed.length) return empty("No tenants.");
  const rows = [...listed].sort((a, b) => depth(b) - depth(a) || (a.tenant < b.tenant ? -1 : 1));
  const running = rows.reduce((sum, one) => sum + one.leased, 0);
  const weightOf = (tenant) => (known.find((one) => one.tenant === tenant && !one.group)?.weight ?? 1);
  const weights = rows.filter((one) => one.leased || one.ready).reduce((sum, one) => sum + weightOf(one.tenant), 0);
  const admin = page.can("admin");
  return h("section", { class: "card", "aria-label": "Tenants" },
    table("Tenants by depth", ["Tenant", quietHead("By state", "mix"), th("Ready", "n"), th("Running", "n"), th("Share", "n", "Of what runs now; in brackets: by weight"), th("Delayed", "n"), th("Waiting", "n"), th("Dead", "n"), th("Done", "n"), admin ? quietHead("Actions") : null].filter(Boolean),
      rows.map((one) => {
        const limit = known.find((it) => it.tenant === one.tenant && !it.group) || {};
        return h("tr", { key: one.tenant, class: limit.paused ? "paused" : "" },
          h("th", { scope: "row" }, link(["queue", queue], { tenant: one.tenant }, { class: "strong" }, one.tenant ? name(one.tenant) : "(no tenant)"),
            limit.paused ? h("span", { class: "chip paused" }, "paused") : null),
          h("td", { class: "mix" }, stack(["waiting", "delayed", "ready", "leased", "dead"].map((state) => [state, one[state]]), `${depth(one)} unfinished`)),
          number(one.ready, "ready"),
          h("td", { class: "n" }, limit.concurrency === undefined ? count(one.leased) : meter(one.leased, limit.concurrency)),
          h("td", { class: "n" }, running ? `${Math.round((one.leased / running) * 100)}%` : "–", h("span", { class: "dim" }, weights && (one.leased || one.ready) ? ` (${Math.round((weightOf(one.tenant) / weights) * 100)}%)` : "")),
          number(one.delayed), number(one.waiting), number(one.dead, "dead"), number(one.done),
          admin ? h("td", { class: "n" }, scopePause(queue, { tenant: one.tenant }, limit.paused, page), " ",
            button("Limits", () => editLimit(queue, { tenant: one.tenant }, limit, page), { class: "quiet", "aria-label": `Limits of ${cut(one.tenant, 40)}` })) : null);
      })),
    listed.length >= NAMED ? more(`The first ${exact(NAMED)} by name, sorted by depth.`, listed.at(-1).tenant, page) : null);
}

function groups(queue, listed, page) {
  if (!listed.length) return empty("No groups.");
  const total = (one) => one.unfinished ?? depth(one);
  const rows = [...listed].sort((a, b) => total(b) - total(a) || (a.group < b.group ? -1 : 1));
  return h("section", { class: "card", "aria-label": "Groups" },
    table("Groups by depth", ["Group", th("Unfinished", "n"), th("Finished", "n")], rows.map((one) => h("tr", { key: one.group },
      h("th", { scope: "row" }, link(["queue", queue], { group: one.group }, { class: "strong" }, one.group ? name(one.group) : "(no group)")),
      number(total(one)), number(one.finished ?? one.done + one.dead + one.cancelled)))),
    listed.length >= NAMED ? more(`The first ${exact(NAMED)} by name, sorted by depth.`, listed.at(-1).group, page) : null);
}

const more = (text, after, page) => h("div", { class: "pager" }, h("span", { class: "dim" }, text), link(page.path, { ...page.query, after }, { class: "next" }, "Next names"));

function scopePause(queue, scope, paused, page) {
  const verb = paused ? "resume" : "pause";
  return button(paused ? "Resume" : "Pause", () => page.act(() => post(["queues", queue, verb], scope), paused ? "Resumed." : "Paused."),
    { class: "quiet", "aria-label": `${paused ? "Resume" : "Pause"} ${cut(scope.group || scope.tenant || queue, 40)}` });
}

// Limits -----------------------------------------------------------------------------------------

const FIELDS = [["concurrency", "Jobs at once", 0], ["rate", "Jobs started", 1], ["per", "per seconds", 0.001], ["weight", "Weight", 1]];

function limits(queue, data, page) {
  const whole = data.limits.find((one) => one.tenant === undefined && one.group === undefined);
  const rows = [whole || {}, ...data.limits.filter((one) => one !== whole)];
  return h("section", { class: "card", "aria-label": "Limits" },
    table("Limits", ["Of", "Tenant", "Group", ...FIELDS.map(([, label]) => th(label, "n")), quietHead("Actions")], rows.map((one) => limitRow(queue, one, page))),
    page.can("admin") ? h("div", { class: "pager" }, button("Add a limit for a tenant or group", () => editLimit(queue, null, {}, page))) : null);
}

function limitRow(queue, one, page) {
  const scope = { ...(one.tenant === undefined ? {} : { tenant: one.tenant }), ...(one.group === undefined ? {} : { group: one.group }) };
  const what = one.group !== undefined ? "group" : one.tenant !== undefined ? "tenant" : "queue";
  const value = { ...one, per: one.per_ms === undefined ? undefined : one.per_ms / 1000 };
  const id = JSON.stringify(scope), admin = page.can("admin");
  const edited = (of) => async (event) => {
    const text = event.currentTarget.value.trim();
    if (text === String(value[of] ?? "")) return;
    if (text === "") { await editLimit(queue, scope, one, page); return; }
    const body = { ...scope, [of]: Number(text) };
    if (of === "rate") body.per = value.per ?? 1;
    if (of === "per") body.rate = value.rate ?? 1;
    await page.act(() => put(["queues", queue, "limits"], body), `${what}: ${of} is ${text}.`);
  };
  return h("tr", { key: id, class: one.paused ? "paused" : "" },
    h("th", { scope: "row" }, what, one.paused ? h("span", { class: "chip paused" }, "paused") : null),
    h("td", null, one.tenant === undefined ? "–" : one.tenant === "*" ? "each tenant" : name(one.tenant)), h("td", null, name(one.group)),
    FIELDS.map(([of, label, least]) => h("td", { class: "n" }, admin
      ? h("input", { type: "number", class: "cell", min: least, step: of === "per" ? "any" : 1, value: value[of] ?? "", placeholder: "–", "aria-label": `${label} of ${what} ${cut(one.group || one.tenant || queue, 40)}`, on: { change: edited(of) } })
      : value[of] ?? "–")),
    h("td", { class: "n" }, admin ? [scopePause(queue, scope, one.paused, page), " ",
      Object.keys(one).length ? button("Remove", () => page.act(() => del(["queues", queue, "limits"], scope), "The limits are removed."), { class: "quiet", "aria-label": `Remove the limits of ${what}` }) : null] : null));
}

function editLimit(queue, scope, now_, page) {
  const value = { ...now_, per: now_.per_ms ? now_.per_ms / 1000 : undefined };
  return ask({
    title: scope ? `Limits of ${cut(scope.group || scope.tenant || queue, 60)}` : "Limits of a tenant or group", confirm: "Set",
    content: [
      scope ? null : field("Tenant", h("input", { name: "tenant", autocomplete: "off" }), "* for each tenant; empty for a group of all tenants"),
      scope ? null : field("Group", h("input", { name: "group", autocomplete: "off" })),
      FIELDS.map(([of, label, least]) => field(label, h("input", { name: of, type: "number", min: least, step: of === "per" ? "any" : 1, value: value[of] ?? "" }))),
      h("p", { class: "dim" }, "What is left empty stays as it is.")],
    does: async (form) => {
      const body = scope ? { ...scope } : {};
      for (const of of ["tenant", "group"]) if (form.get(of)) body[of] = form.get(of);
      for (const [of] of FIELDS) if (form.get(of)) body[of] = Number(form.get(of));
      await put(["queues", queue, "limits"], body);
      page.refresh();
    },
  });
}
