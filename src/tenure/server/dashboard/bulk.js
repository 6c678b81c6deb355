// Actions on all jobs that match a filter: first a dry run, then progress.
import { h, render } from "./dom.js";
import { get, post } from "./api.js";
import { count, cut, exact, jobs, name, when } from "./format.js";
import { ask, button, chip, empty, reasonField, say, table, th } from "./widgets.js";

const ACTIONS = { __proto__: null, cancel: "Cancel", replay: "Replay", delete: "Delete", run_now: "Run now" };
const BY_STATE = {
  __proto__: null,
  pending: ["run_now", "cancel"],
  leased: ["cancel"],
  waiting: ["cancel"],
  dead: ["replay", "delete"],
  cancelled: ["replay", "delete"],
  done: ["delete"],
};
const CHIPS = { __proto__: null, running: "leased", done: "done", stopped: "delayed" };
const TIMES = /_(after|before)$/;
const WATCH_MS = 700;

/** Buttons for all matching jobs of a state. delayed: whether some wait for their time. */
function buttons(filter, state, page, more, delayed) {
  const actions = (BY_STATE[state] || []).filter((action) => action !== "run_now" || delayed);
  if (!page.offersBulk()) return more ? h("div", { class: "bulk" }, more) : null;
  return h(
    "div",
    { class: "bulk" },
    h("span", { class: "dim" }, "All that match:"),
    actions.map((action) =>
      button(`${ACTIONS[action]}…`, () => start(action, filter, page), { class: "quiet" }),
    ),
    more,
  );
}

/** Show how many jobs an action would change, and then do it. about: which they are, in words. */
async function start(action, given, page, about = null) {
  const filter = Object.fromEntries(
    Object.entries(given).map(([one, value]) => [one, TIMES.test(one) ? Number(value) : value]),
  );
  let tried;
  try {
    tried = await post(["bulk"], { action, filter, dry_run: true });
  } catch (error) {
    say(error.message, "bad");
    return;
  }
  if (!tried.count) {
    say("No job matches.", "odd");
    return;
  }
  const how = `${tried.exact ? "" : "at least "}${exact(tried.count)} job${tried.count === 1 ? "" : "s"}`;
  let begun = null;
  await ask({
    title: `${ACTIONS[action]} ${how}?`,
    confirm: `${ACTIONS[action]} ${how}`,
    leave: action === "cancel" ? "Keep them" : "Cancel",
    danger: action === "delete" || action === "cancel",
    wide: true,
    content: [
      about ? h("p", null, about) : null,
      filterText(filter),
      sample(tried.sample || []),
      reasonField(),
    ],
    does: async (form) => {
      const body = { action, filter, dry_run: false };
      if (form.get("reason")) body.reason = form.get("reason");
      begun = await post(["bulk"], body);
    },
  });
  if (begun) await watch(begun, page);
}

const filterText = (filter) =>
  h(
    "p",
    { class: "dim" },
    Object.entries(filter).map(([one, value]) =>
      h("span", { class: "chosen" }, `${one}: ${cut(String(value), 60)}`),
    ),
  );

const sample = (found) =>
  found.length
    ? table(
        "Some of them",
        ["Job", "Kind", "Tenant", "State"],
        found
          .slice(0, 10)
          .map((job) =>
            h(
              "tr",
              null,
              h("td", { class: "mono" }, name(job.id, 36)),
              h("td", null, name(job.kind, 30)),
              h("td", null, name(job.tenant, 30)),
              h("td", null, chip(job.state)),
            ),
          ),
      )
    : null;

/** Show the progress of an action until it ends or the dialog is closed. */
async function watch(run, page) {
  let open = true,
    box = null;
  const done = ask({
    title: `${ACTIONS[run.action] || run.action}`,
    confirm: "Close",
    content: [h("div", { class: "progress", "aria-live": "polite" })],
  }).then(() => {
    open = false;
  });
  box = document.querySelector("dialog[open] .progress");
  while (open) {
    render(box, progress(run, page));
    if (run.state !== "running") break;
    await new Promise((resolve) => {
      setTimeout(resolve, WATCH_MS);
    });
    try {
      run = await get(["bulk", run.id]);
    } catch (error) {
      render(box, h("p", { class: "trouble" }, error.message));
    }
  }
  page.refresh();
  await done;
}

function progress(run) {
  const stop = () => post(["bulk", run.id, "stop"]).catch((error) => say(error.message, "bad"));
  return [
    h(
      "p",
      null,
      h("span", { class: `chip ${CHIPS[run.state] || "dead"}` }, run.state),
      ` ${jobs(run.changed ?? 0)} changed, ${count(run.looked_at ?? 0)} looked at.`,
    ),
    run.error ? h("p", { class: "trouble" }, cut(run.error, 500)) : null,
    run.refused_count ? h("p", null, `${count(run.refused_count)} refused:`) : null,
    run.refused && run.refused.length
      ? h(
          "ul",
          { class: "refused" },
          run.refused
            .slice(0, 20)
            .map((one) => h("li", null, name(one.id, 36), ": ", cut(one.reason || "", 200))),
        )
      : null,
    run.state === "running" ? button("Stop", stop) : null,
  ];
}

/** The last bulk actions, for the audit page. */
function list(found) {
  if (!found.length) return empty("None.");
  return table(
    "Bulk actions",
    ["Action", "By", th("Changed", "n"), th("Refused", "n"), "State", "Started", "Reason"],
    found.map((one) =>
      h(
        "tr",
        { key: one.id },
        h("th", { scope: "row" }, ACTIONS[one.action] || one.action),
        h("td", null, name(one.by)),
        h("td", { class: "n" }, count(one.changed)),
        h("td", { class: "n" }, count(one.refused_count)),
        h("td", null, one.state),
        h("td", null, when(one.started_at)),
        h("td", null, name(one.reason, 80)),
      ),
    ),
  );
}

export const bulk = { buttons, start, list };
