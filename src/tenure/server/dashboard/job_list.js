// Lists of jobs, a page at a time.
import { h } from "./dom.js";
import { get } from "./api.js";
import { cut, jobs as jobsText, name, now, span, timeOfDay, when } from "./format.js";
import { chip, empty, link, table, th } from "./widgets.js";

/** A page of jobs, without what is large. */
export const listJobs = (query, signal) => get(["jobs"], { summary: true, ...query }, { signal });

/** A list of jobs. */
export function jobTable(found, page, { queue = null, none = "No jobs here." } = {}) {
  if (!found.length) return empty(none);
  const some = (one) => found.some((job) => job[one]);
  const kinds = some("kind"),
    tenanted = some("tenant"),
    grouped = some("group"),
    ended = some("finished_at");
  return table(
    "Jobs",
    [
      "Job",
      queue ? null : "Queue",
      kinds ? "Kind" : null,
      tenanted ? "Tenant" : null,
      grouped ? "Group" : null,
      "State",
      th("Attempts", "n"),
      th("Created", "n"),
      ended ? th("Finished", "n") : null,
      ended ? th("Took", "n", "The last attempt") : null,
      "About",
    ].filter(Boolean),
    found.map((job) =>
      h(
        "tr",
        { key: job.id },
        h("th", { scope: "row" }, link(["job", job.id], null, { class: "mono" }, name(job.id, 36))),
        queue ? null : h("td", null, link(["queue", job.queue], null, null, name(job.queue, 30))),
        kinds ? h("td", null, name(job.kind, 40)) : null,
        tenanted
          ? h(
              "td",
              null,
              job.tenant
                ? link(
                    ["queue", job.queue],
                    { ...page.query, tenant: job.tenant, cursor: null },
                    null,
                    name(job.tenant, 30),
                  )
                : name(""),
            )
          : null,
        grouped
          ? h(
              "td",
              null,
              job.group
                ? link(
                    ["queue", job.queue],
                    { ...page.query, group: job.group, cursor: null },
                    null,
                    name(job.group, 30),
                  )
                : name(""),
            )
          : null,
        h("td", null, chip(shownState(job)), job.progress ? ` ${job.progress}%` : null),
        h("td", { class: `n ${job.attempts > 1 ? "late" : ""}` }, `${job.attempts} / ${job.max_attempts}`),
        h("td", { class: "n" }, when(job.created_at)),
        ended ? h("td", { class: "n" }, when(job.finished_at)) : null,
        ended
          ? h(
              "td",
              { class: "n" },
              job.started_at && job.finished_at ? span(job.finished_at - job.started_at) : "–",
            )
          : null,
        h("td", { class: "about" }, aboutJob(job)),
      ),
    ),
  );
}

export const shownState = (job) =>
  job.state !== "pending" ? job.state : job.run_at > now() ? "delayed" : "ready";

function aboutJob(job) {
  const error = job.error || (job.errors && job.errors.at(-1));
  if (error && job.state !== "done")
    return h(
      "span",
      { class: "dead" },
      h("bdi", null, cut(`${error.type ? `${error.type}: ` : ""}${error.message || ""}`, 120)),
    );
  if (job.state === "leased")
    return h("span", null, h("bdi", null, cut(job.worker || "", 50)), " since ", when(job.started_at));
  if (job.state === "pending" && job.run_at > now()) return h("span", null, "due ", when(job.run_at));
  const preview =
    job.payload_preview ??
    (job.payload === undefined || job.payload === null ? "" : JSON.stringify(job.payload));
  return h("span", { class: "dim mono" }, h("bdi", null, cut(preview, 100)));
}

/** How far a list looked, and links to the rest. */
export function pager(found, page) {
  const looked =
    found.scanned !== undefined && found.scanned !== null && found.cursor
      ? `Looked at ${jobsText(found.scanned)}${found.scanned_to ? `, back to ${timeOfDay(found.scanned_to)}` : ""}.`
      : "";
  if (!found.cursor && !page.query.cursor) return null;
  return h(
    "div",
    { class: "pager" },
    page.query.cursor ? link(page.path, { ...page.query, cursor: null }, null, "First page") : null,
    h("span", { class: "dim" }, looked),
    found.cursor
      ? link(
          page.path,
          { ...page.query, cursor: found.cursor },
          { class: "next" },
          found.jobs.length ? "Next page" : "Go on looking",
        )
      : null,
  );
}
