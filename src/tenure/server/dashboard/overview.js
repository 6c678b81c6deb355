// All queues, and what needs attention.
import { h } from "./dom.js";
import { get, token } from "./api.js";
import { brief, count, name, now, setClock, visible } from "./format.js";
import {
  age,
  button,
  duration,
  empty,
  link,
  meter,
  number,
  quietHead,
  spark,
  stack,
  table,
  th,
} from "./widgets.js";
import { scopePause } from "./limits.js";

export const title = () => "Overview";

export async function load({ signal }) {
  const found = await get(["overview"], null, { signal });
  setClock(found.now);
  return found;
}

const MANY = 15; // queues, from which on they can be filtered
const HIDE_DONE = ["waiting", "delayed", "ready", "leased", "dead"];

export function view(data, page) {
  if (!data.queues.length) return nothingYet();
  const sort = page.query.sort || "attention";
  const wanted = (page.query.named || "").toLowerCase();
  const rows = sorted(
    data.queues.filter((row) => row.queue.toLowerCase().includes(wanted)),
    sort,
  );
  return [
    h("h1", { class: "unseen" }, "Overview"),
    data.attention.length
      ? attention(data.attention, data.attention_left)
      : h("p", { class: "calm" }, "Nothing needs attention."),
    totals(data.queues),
    h(
      "section",
      { class: "card", "aria-label": "Queues" },
      h(
        "div",
        { class: "card-head" },
        h("h2", null, "Queues"),
        h(
          "span",
          { class: "dim" },
          wanted ? `${count(rows.length)} of ${count(data.queues.length)}` : count(data.queues.length),
        ),
        data.queues.length > MANY || wanted ? filter(page) : null,
        h(
          "span",
          { class: "push" },
          "Sort by ",
          ["attention", "name", "ready", "oldest"].map((one) =>
            button(one, () => page.change({ sort: one === "attention" ? null : one }), {
              class: "quiet",
              "aria-pressed": String(one === sort),
            }),
          ),
        ),
      ),
      rows.length ? queues(rows, page) : empty("No queue has this in its name."),
    ),
  ];
}

/** A field that leaves only the queues with this in their names. */
const filter = (page) =>
  h("input", {
    type: "search",
    value: page.query.named || "",
    placeholder: "Filter by name",
    "aria-label": "Filter the queues by name",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: 200,
    on: { input: (event) => page.narrow({ named: event.currentTarget.value.trim() || null }) },
  });

function sorted(rows, by) {
  const rank = {
    attention: (row) => -(row.dead * 2 + row.ready + row.leased + row.delayed + row.waiting),
    ready: (row) => -row.ready,
    oldest: (row) => row.oldest_ready_at ?? Infinity,
  }[by];
  return rank ? [...rows].sort((a, b) => rank(a) - rank(b) || (a.queue < b.queue ? -1 : 1)) : rows;
}

/** Where something that needs attention is shown. */
const PLACES = {
  __proto__: null,
  dead: ({ queue }) => [["queue", queue], { state: "dead" }],
  errors: ({ queue }) => [["errors"], { queue }],
  pending: ({ queue, kind }) => [["queue", queue], { kind }],
  waiting: ({ queue }) => [["queue", queue], { state: "waiting" }],
  schedules: () => [["schedules"], null],
};

export function attention(found, left = 0, label = (one) => name(one.queue)) {
  return h(
    "section",
    { class: "attention", "aria-label": "What needs attention" },
    h("h2", { class: "unseen" }, "What needs attention"),
    h(
      "ul",
      null,
      found.map((one) => {
        const [path, query] = PLACES[one.link]?.(one) || [["queue", one.queue], null];
        return h(
          "li",
          { class: one.level || "bad", key: `${one.queue} ${one.link} ${one.kind}` },
          one.link === "shards" ? "Shards" : link(path, query, null, one.queue ? label(one) : "Schedules"),
          ": ",
          h("bdi", null, visible(one.text)),
        );
      }),
    ),
    left ? h("p", { class: "dim" }, `And ${count(left)} more: see the queues below.`) : null,
  );
}

function totals(queues) {
  const sum = (field) => queues.reduce((all, one) => all + one[field], 0);
  const rated = queues.filter((one) => one.rates && one.rates.length);
  const perMinute = rated.length
    ? rated.reduce((all, one) => all + (one.rates.at(-2) ?? one.rates.at(-1)), 0)
    : null;
  const tiles = [
    ["Ready", sum("ready"), "ready"],
    ["Running", sum("leased"), "leased"],
    ["Delayed", sum("delayed"), "delayed"],
    ["Waiting for others", sum("waiting"), "waiting"],
    ["Dead", sum("dead"), "dead"],
    perMinute === null ? ["Done", sum("done"), "done"] : ["Done last minute", perMinute, "done"],
  ];
  return h(
    "dl",
    { class: "tiles" },
    tiles.map(([label, n, state]) =>
      h("div", { class: `tile ${state} ${n ? "" : "zero"}` }, h("dt", null, label), h("dd", null, count(n))),
    ),
  );
}

function queues(rows, page) {
  const has = (field) => rows.some((row) => row[field] !== null && row[field] !== undefined);
  const rates = has("rates"),
    waits = has("wait_p50"),
    workers = has("workers"),
    waiting = rows.some((row) => row.waiting),
    admin = page.can("admin");
  const heads = [
    "Queue",
    quietHead("By state", "mix"),
    th("Ready", "n"),
    th("Oldest", "n", "How long the oldest ready job has waited"),
    th("Running", "n"),
    th("Delayed", "n"),
    waiting ? th("Waiting", "n") : null,
    th("Dead", "n"),
    rates ? th("Done per minute", "", "The last 30 minutes; red: failures") : null,
    waits ? th("Wait", "n", "How long jobs wait: median and 99th percentile") : null,
    waits ? th("Run", "n", "How long jobs run: median and 99th percentile") : null,
    workers ? th("Workers", "n") : null,
    admin ? quietHead("Actions") : null,
  ].filter(Boolean);
  return table(
    "Queues",
    heads,
    rows.map((row) =>
      h(
        "tr",
        { key: row.queue, class: row.paused ? "paused" : "" },
        h(
          "th",
          { scope: "row" },
          link(["queue", row.queue], null, { class: "strong" }, name(row.queue)),
          row.paused ? h("span", { class: "chip paused" }, "paused") : null,
        ),
        h(
          "td",
          { class: "mix" },
          stack(
            HIDE_DONE.map((state) => [state, row[state]]),
            HIDE_DONE.map((state) => `${row[state]} ${state}`).join(", "),
          ),
        ),
        number(row.ready, "ready"),
        age(row.oldest_ready_at ? now() - row.oldest_ready_at : null),
        h(
          "td",
          { class: "n" },
          row.limit === null
            ? h("span", { class: row.leased ? "" : "zero" }, count(row.leased))
            : meter(row.leased, row.limit),
        ),
        number(row.delayed),
        waiting ? number(row.waiting) : null,
        h(
          "td",
          { class: `n ${row.dead ? "dead" : "zero"}` },
          row.dead ? link(["queue", row.queue], { state: "dead" }, null, count(row.dead)) : "0",
        ),
        rates
          ? h(
              "td",
              null,
              spark(row.rates, row.failures, `done per minute: ${row.rates ? row.rates.join(", ") : ""}`),
            )
          : null,
        waits ? pair(row.wait_p50, row.wait_p99) : null,
        waits ? pair(row.run_p50, row.run_p99) : null,
        workers ? number(row.workers) : null,
        admin ? h("td", { class: "n" }, scopePause(row.queue, {}, row.paused, page)) : null,
      ),
    ),
  );
}

function pair(half, most) {
  if (half === null || half === undefined) return duration(null);
  return h("td", { class: "n" }, brief(half), h("span", { class: "dim" }, ` · ${brief(most)}`));
}

function nothingYet() {
  const secret = token.get() ? "  -H 'authorization: Bearer TOKEN' \\\n" : "";
  return [
    h("h1", null, "No jobs yet"),
    h("p", { class: "dim" }, "A queue appears here with its first job. For example:"),
    h(
      "pre",
      { class: "card" },
      `curl ${new URL("v1/jobs", document.baseURI)} \\\n${secret}  -H 'content-type: application/json' \\\n  -d '{"queue": "mail", "payload": {"to": "ann@example.com"}}'`,
    ),
  ];
}
