// One job: why it is where it is, its life, what it holds, and what can be done with it.
import { build, h, s, widget } from "./dom.js";
import { del, get, ifOffered, patch, post, readExactly } from "./api.js";
import { cut, exact, name, now, setClock, span, timeOfDay, visible, when } from "./format.js";
import { ask, button, chip, copyButton, field, link, reasonField, say } from "./widgets.js";
import { cutText, jsonView } from "./json_view.js";
import { shownState } from "./job_list.js";
import { editLimit } from "./limits.js";
import { loadSteps, signalButton, steps } from "./steps.js";

const MOST_RELATED = 20,
  MOST_TRACEBACK = 4000;
const FINAL = ["done", "dead", "cancelled"];

export const title = (page) => `Job ${page.path[1]}`;

export async function load(page) {
  const id = page.path[1],
    { signal } = page;
  let text = "";
  const [job, why, history, related] = await Promise.all([
    get(["jobs", id], null, {
      signal,
      read: (found) => {
        text = found;
        return readExactly(found);
      },
    }),
    ifOffered(get(["jobs", id, "why"], null, { signal })),
    ifOffered(get(["jobs", id, "history"], null, { signal })),
    get(["jobs", id, "related"], { limit: MOST_RELATED }, { signal }),
  ]);
  for (const one of Object.keys(job))
    if (
      job[one] &&
      typeof job[one] === "object" &&
      "text" in job[one] &&
      one !== "payload" &&
      one !== "result"
    )
      job[one] = Number(job[one].text);
  if (why) setClock(why.now);
  return { job, why, history, related, recorded: await loadSteps(job, signal), parts: partsOf(text) };
}

/** The payload and the result as they were sent. */
function partsOf(text) {
  const found = {};
  for (const one of ["payload", "result"]) {
    const at = topLevel(text, one);
    if (at) found[one] = text.slice(...at);
  }
  return found;
}

/** Where the value of a top-level field of a JSON object begins and ends. */
function topLevel(text, wanted) {
  let depth = 0,
    at = 0;
  const string = () => {
    at++;
    while (text[at] !== '"') at += text[at] === "\\" ? 2 : 1;
    at++;
  };
  while (at < text.length) {
    const one = text[at];
    if (one === '"') {
      const from = at;
      string();
      if (depth === 1 && text[at] === ":" && text.slice(from, at) === `"${wanted}"`) {
        const begins = ++at;
        let inside = 0;
        while (at < text.length) {
          if (text[at] === '"') {
            string();
            continue;
          }
          if ("{[".includes(text[at])) inside++;
          else if ("}]".includes(text[at])) {
            if (!inside) break;
            inside--;
          } else if (text[at] === "," && !inside) break;
          at++;
        }
        return [begins, at];
      }
      continue;
    }
    if (one === "{" || one === "[") depth++;
    if (one === "}" || one === "]") depth--;
    at++;
  }
  return null;
}

export function view({ job, why, history, related, recorded, parts }, page) {
  return [
    h(
      "p",
      { class: "crumbs" },
      link([], null, null, "Overview"),
      " / ",
      link(["queue", job.queue], null, null, name(job.queue)),
    ),
    h(
      "div",
      { class: "title" },
      h("h1", { class: "mono" }, name(job.id, 200)),
      copyButton(job.id, "the id"),
      chip(shownState(job)),
      job.progress
        ? h(
            "span",
            { class: "progress-of" },
            h("progress", { max: 100, value: job.progress, "aria-label": "Progress" }),
            ` ${job.progress}% `,
            name(job.note, 80),
          )
        : null,
      actions(job, parts, page),
    ),
    why ? explain(why, job, page) : null,
    facts(job),
    timeline(job, history),
    steps(recorded),
    errors(job),
    dependencies(job, related),
    jsonView(`payload ${job.id}`, "Payload", job.payload, parts.payload ?? "null"),
    parts.result !== undefined && parts.result !== "null"
      ? jsonView(`result ${job.id}`, "Result", job.result, parts.result)
      : null,
  ];
}

// Why --------------------------------------------------------------------------------------------

const HEADS = { __proto__: null, leased: "It runs", waiting: "Why it waits", pending: "Why it does not run" };

function explain(why, job, page) {
  const last = why.last_error,
    reasons = FINAL.includes(why.state) ? [] : why.reasons;
  if (!reasons.length) return null;
  const runs = why.claimable && !reasons.some((one) => one.code === "no_worker");
  const kind = why.state === "leased" ? "runs" : runs ? "next" : "";
  const known = last ? [{ code: "last_error", text: last.text, fix: last.fix }, ...reasons] : reasons;
  return h(
    "section",
    { class: `card why ${kind}`, "aria-label": "Why" },
    h("h2", null, runs ? "It can run now" : HEADS[why.state]),
    h(
      known.length > 1 ? "ol" : "ul",
      null,
      known.map((one) =>
        h(
          "li",
          { key: one.code + (one.scope || "") },
          h("span", null, cut(one.text, 1000)),
          one.fix ? h("span", { class: "fix" }, cut(one.fix, 1000)) : null,
          details(one),
          page.can("admin") ? h("div", null, cure(one, job, page)) : null,
          one.code === "suspended" && one.kind === "wait" && page.can("produce")
            ? h("div", null, signalButton(one, job, page))
            : null,
        ),
      ),
    ),
  );
}

/** A button that removes what holds the job back. */
function cure(reason, job, page) {
  const scope = Object.fromEntries(
    ["tenant", "group"].filter((one) => reason[one] != null).map((one) => [one, reason[one]]),
  );
  if (reason.code === "paused")
    return button(`Resume the ${reason.scope}`, () =>
      page.act(() => post(["queues", job.queue, "resume"], scope), `The ${reason.scope} runs again.`),
    );
  if (reason.code === "limit")
    return button("Change the limit…", () =>
      editLimit(job.queue, scope, { concurrency: reason.limit ?? undefined }, page),
    );
  if (reason.code === "rate") return button("Change the rate…", () => editLimit(job.queue, {}, {}, page));
  const failed = (reason.parents || []).filter((one) => ["dead", "cancelled"].includes(one.state));
  return failed.map(({ id }) =>
    button(`Replay ${cut(id, 40)}`, () =>
      page.act(() => post(["jobs", id, "replay"]), `${cut(id, 40)} will run again.`),
    ),
  );
}

function details(reason) {
  const ids = reason.holders || (reason.parents || []).map((one) => one.id);
  if (!ids || !ids.length) return null;
  return h(
    "span",
    { class: "ids" },
    ids.map((id) => link(["job", id], null, { class: "mono" }, name(id, 36))),
  );
}

// Facts ------------------------------------------------------------------------------------------

function facts(job) {
  const known = [
    ["Queue", link(["queue", job.queue], null, null, name(job.queue))],
    ["Kind", job.kind && name(job.kind, 100)],
    ["Tenant", job.tenant && link(["queue", job.queue], { tenant: job.tenant }, null, name(job.tenant))],
    ["Group", job.group && link(["queue", job.queue], { group: job.group }, null, name(job.group))],
    ["Priority", exact(job.priority)],
    ["Attempts", `${job.attempts} of ${job.max_attempts}`],
    ["Created", when(job.created_at)],
    ["Due", job.state === "pending" ? when(job.run_at) : null],
    ["Started", job.started_at && when(job.started_at)],
    ["Finished", job.finished_at && when(job.finished_at)],
    ["Took", job.started_at && job.finished_at ? span(job.finished_at - job.started_at) : null],
    [
      "Worker",
      job.worker &&
        link(["queue", job.queue], { state: job.state, worker: job.worker }, null, name(job.worker, 80)),
    ],
    ["Lease until", job.state === "leased" && when(job.lease_until)],
    ["Expires", job.expires_at && when(job.expires_at)],
    ["Unique key", job.unique_key && name(job.unique_key, 80)],
    ["Timeout", job.timeout_ms && span(job.timeout_ms)],
    [
      "Replay of",
      job.replay_of && link(["job", job.replay_of], null, { class: "mono" }, name(job.replay_of, 40)),
    ],
    ["Trace", job.trace && name(job.trace, 60)],
  ];
  return h(
    "dl",
    { class: "facts" },
    known
      .filter(([, value]) => value)
      .map(([label, value]) => h("div", null, h("dt", null, label), h("dd", null, value))),
  );
}

// Timeline ---------------------------------------------------------------------------------------

const TEXTS = { __proto__: null, run_now: "run now" };

/** The moves of a job, oldest first: from the service, or derived from the job itself. */
function momentsOf(job, history) {
  if (history)
    return history.map((one) => ({ at: one.at, what: one.what, who: one.by || "", text: about(one) }));
  const found = [{ at: job.created_at, what: "created", who: "", text: "" }];
  for (const one of job.errors || [])
    found.push({ at: one.at, what: "failed", who: one.worker || "", text: about(one) });
  if (job.started_at)
    found.push({
      at: job.started_at,
      what: "claimed",
      who: job.worker || "",
      text: `attempt ${job.attempts}`,
    });
  if (FINAL.includes(job.state) && job.finished_at)
    found.push({ at: job.finished_at, what: job.state, who: "", text: "" });
  return found.sort((a, b) => a.at - b.at);
}

const about = (one) =>
  [one.attempt ? `attempt ${one.attempt}` : "", [one.type, one.message].filter(Boolean).join(": ")]
    .filter(Boolean)
    .join(", ");

function timeline(job, history) {
  const moments = momentsOf(job, history);
  return h(
    "section",
    { class: "card", "aria-label": "Timeline" },
    h("h2", null, "Timeline"),
    bands(job, moments),
    h(
      "ol",
      { class: "moments" },
      moments
        .slice(-40)
        .map((one, n) =>
          h(
            "li",
            { key: `${n} ${one.at}`, class: one.what },
            h("time", { datetime: new Date(one.at).toISOString() }, timeOfDay(one.at)),
            h("b", null, TEXTS[one.what] || visible(String(one.what))),
            h(
              "span",
              null,
              one.text ? h("bdi", null, cut(String(one.text), 160)) : null,
              one.who ? h("span", { class: "dim" }, " by ", name(one.who, 60)) : null,
            ),
            n ? h("span", { class: "dim" }, `+${span(one.at - moments[n - 1].at)}`) : null,
          ),
        ),
    ),
  );
}

/** The life of a job as bands: waiting, running, sleeping until a retry. */
function bands(job, moments) {
  const from = job.created_at,
    end = FINAL.includes(job.state)
      ? job.finished_at || job.updated_at
      : Math.max(now(), job.state === "pending" ? job.run_at : 0);
  const all = Math.max(1, end - from),
    x = (at) => Math.min(1000, Math.max(0, ((at - from) / all) * 1000));
  const parts = [];
  let at = from,
    state = "ready";
  const add = (until, kind) => {
    if (until > at) parts.push([kind, at, until]);
    at = Math.max(at, until);
  };
  for (const one of moments) {
    if (one.what === "claimed") {
      add(one.at, state);
      state = "leased";
    } else if (one.what === "failed") {
      add(one.at, state === "leased" ? "dead" : state);
      state = "delayed";
    } else if (FINAL.includes(one.what)) {
      add(one.at, state === "leased" ? (one.what === "done" ? "done" : "dead") : state);
      state = one.what;
    }
  }
  if (!FINAL.includes(job.state))
    add(
      end,
      job.state === "leased"
        ? "leased"
        : job.state === "waiting"
          ? "waiting"
          : job.run_at > now()
            ? "delayed"
            : "ready",
    );
  return s(
    "svg",
    {
      class: "bands",
      viewBox: "0 0 1000 14",
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `${moments.length} moves in ${span(all)}`,
    },
    s("rect", { class: "bar-back", width: 1000, height: 14, rx: 2 }),
    parts.map(([kind, begins, ends]) =>
      s("rect", {
        class: `fill-${kind}`,
        x: x(begins).toFixed(1),
        width: Math.max(3, x(ends) - x(begins)).toFixed(1),
        height: 14,
      }),
    ),
  );
}

// Errors and dependencies ------------------------------------------------------------------------

function errors(job) {
  const found = [...(job.errors || [])].reverse();
  if (!found.length) return null;
  return h(
    "section",
    { class: "card", "aria-label": "Errors" },
    h("h2", null, `Errors (${found.length})`),
    found.map((one, n) =>
      h(
        "details",
        { key: `${one.at} ${one.attempt}`, open: n === 0, class: "error" },
        h(
          "summary",
          null,
          h("b", { class: "dead" }, h("bdi", null, cut(one.type || "error", 120))),
          " ",
          h("bdi", null, cut(one.message || "", 200)),
          h(
            "span",
            { class: "dim" },
            ` attempt ${one.attempt}, `,
            when(one.at),
            one.worker ? [" on ", name(one.worker, 60)] : null,
          ),
        ),
        one.message && one.message.length > 200 ? long(`m${one.at}`, one.message) : null,
        one.traceback ? long(`t${one.at}`, one.traceback, true) : h("p", { class: "dim" }, "No traceback."),
      ),
    ),
  );
}

/** A long text, cut. fromEnd: what matters is its end, as in a traceback. */
const long = (key, text, fromEnd = false) =>
  widget(key, text.length, () => {
    const node = build(h("pre", { tabindex: 0 }));
    cutText(node, text, MOST_TRACEBACK, fromEnd);
    if (fromEnd) requestAnimationFrame(() => node.scrollTo(0, node.scrollHeight));
    return node;
  });

/** What the job waits for, itself, and what waits for it, from left to right. */
function dependencies(job, { after, before, more }) {
  const named = job.after || [];
  if (!named.length && !before.length) return null;
  const known = new Map(after.map((one) => [one.id, one]));
  const parents = named.slice(0, MOST_RELATED).map((id) => known.get(id) || { id, state: null });
  const left = named.length - parents.length;
  const fails = { wait: "waits", cancel: "is cancelled", run: "runs anyway" };
  return h(
    "section",
    { class: "card", "aria-label": "Dependencies" },
    h("h2", null, "Dependencies"),
    h(
      "div",
      { class: "graph" },
      column("Runs after", parents, left > 0 ? `and ${exact(left)} more` : ""),
      h(
        "div",
        { class: "this" },
        h("h3", null, "This job"),
        h("ul", null, h("li", null, chip(shownState(job)), job.kind ? name(job.kind, 40) : name(job.id, 12))),
      ),
      column("These wait for it", before, more ? "and more" : ""),
    ),
    named.length
      ? h("p", { class: "dim" }, `If one fails, this job ${fails[job.if_parent_fails || "wait"]}.`)
      : null,
  );
}

function column(title, jobs, rest) {
  if (!jobs.length) return null;
  return h(
    "div",
    null,
    h("h3", null, title),
    h(
      "ul",
      null,
      jobs.map((one) =>
        h(
          "li",
          { key: one.id },
          one.state ? chip(shownState(one)) : h("span", { class: "chip" }, "gone"),
          link(["job", one.id], null, { class: "mono" }, name(one.id, 40)),
          one.kind ? name(one.kind, 40) : null,
        ),
      ),
    ),
    rest ? h("p", { class: "dim" }, rest) : null,
  );
}

// Actions ----------------------------------------------------------------------------------------

function actions(job, parts, page) {
  const can = [];
  const simple = (label, verb, said, attributes) =>
    button(
      label,
      () =>
        page.act(async () => {
          const changed = await post(["jobs", job.id, verb]);
          if (changed.count === 0) throw new Error("The job is no longer in a state that allows this.");
        }, said),
      attributes,
    );
  if (page.can("admin") && job.state === "pending" && job.run_at > now())
    can.push(simple("Run now", "run-now", "It is ready.", { class: "primary" }));
  if (page.can("admin") && ["dead", "cancelled"].includes(job.state)) {
    can.push(
      simple("Replay", "replay", "It will run again.", { class: "primary" }),
      button("Edit and replay…", () => editAndReplay(job, parts, page)),
    );
  }
  if (page.can("admin") && ["pending", "waiting"].includes(job.state))
    can.push(button("Change…", () => change(job, parts, page)));
  if (page.can("produce") && !FINAL.includes(job.state))
    can.push(
      job.state === "leased"
        ? button("Cancel…", () => cancel(job, page))
        : simple("Cancel", "cancel", "It is cancelled."),
    );
  if (page.can("admin")) can.push(button("Delete…", () => remove(job, page), { class: "danger-quiet" }));
  return can.length ? h("div", { class: "actions" }, can) : null;
}

/** Ask before cancelling a running job: what it has done so far is lost. */
function cancel(job, page) {
  return ask({
    title: "Cancel this job while it runs?",
    confirm: "Cancel the job",
    leave: "Keep it",
    danger: true,
    content: [
      h("p", null, "Its worker learns of it at its next heartbeat; what it does until then is not kept."),
      reasonField(),
    ],
    does: async (form) => {
      await post(["jobs", job.id, "cancel"], undefined, { reason: form.get("reason") });
      page.refresh();
    },
  });
}

async function remove(job, page) {
  const done = await ask({
    title: "Delete this job?",
    confirm: "Delete",
    danger: true,
    content: [h("p", null, "It is gone for good, with its payload and its errors."), reasonField()],
    does: (form) => del(["jobs", job.id], null, { reason: form.get("reason") }),
  });
  if (done) {
    say("The job is deleted.");
    page.leave(["queue", job.queue]);
  }
}

/** The payload of a form, checked. Sent as it was written: JavaScript would change large numbers. */
function payloadOf(form, before) {
  const text = String(form.get("payload"));
  if (text.trim() === before.trim()) return null;
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Error(`The payload is not JSON: ${error.message}`);
  }
  if (text.includes("[redacted]"))
    throw new Error("The payload has redacted fields: write their values, or leave the payload unchanged.");
  return text;
}

function bodyOf(fields, payload) {
  const text = JSON.stringify(fields);
  return payload === null ? text : `${text.slice(0, -1)}${text.length > 2 ? "," : ""}"payload":${payload}}`;
}

/** JSON with line breaks, unless JavaScript would change its numbers. */
function pretty(text) {
  try {
    const value = JSON.parse(text);
    return text.length < 200000 && JSON.stringify(value) === text ? JSON.stringify(value, null, 2) : text;
  } catch {
    return text;
  }
}

const payloadField = (text) =>
  field(
    "Payload",
    h("textarea", { name: "payload", rows: 10, spellcheck: "false", class: "mono", value: text }),
  );

function editAndReplay(job, parts, page) {
  const before = pretty(parts.payload ?? "null");
  let made = null;
  return ask({
    title: "Replay as a new job",
    confirm: "Enqueue",
    wide: true,
    content: [
      payloadField(before),
      field("Priority", h("input", { name: "priority", type: "number", step: 1, value: job.priority })),
    ],
    does: async (form) => {
      const fields =
        Number(form.get("priority")) === job.priority ? {} : { priority: Number(form.get("priority")) };
      made = await post(["jobs", job.id, "edit-and-replay"], bodyOf(fields, payloadOf(form, before)));
    },
  }).then((done) => {
    if (done && made) {
      say("The new job is enqueued.");
      page.leave(["job", made.id]);
    }
  });
}

function change(job, parts, page) {
  const before = pretty(parts.payload ?? "null");
  return ask({
    title: "Change the job",
    confirm: "Change",
    wide: true,
    content: [
      field(
        "Priority",
        h("input", { name: "priority", type: "number", step: 1, value: job.priority }),
        "Lower runs first.",
      ),
      field(
        "Run in",
        h("input", { name: "delay", type: "number", min: 0, step: "any" }),
        "Seconds from now; empty: unchanged.",
      ),
      payloadField(before),
    ],
    does: async (form) => {
      const fields = {};
      if (Number(form.get("priority")) !== job.priority) fields.priority = Number(form.get("priority"));
      if (form.get("delay") !== "") fields.delay = Number(form.get("delay"));
      const payload = payloadOf(form, before);
      if (!Object.keys(fields).length && payload === null) throw new Error("Nothing was changed.");
      await patch(["jobs", job.id], bodyOf(fields, payload));
      page.refresh();
    },
  });
}
