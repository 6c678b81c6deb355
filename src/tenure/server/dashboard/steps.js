// The durable steps of a job: what it has recorded, what it waits for, and the signals it has got.
import { h } from "./dom.js";
import { get, ifOffered, post } from "./api.js";
import { cut, exact, name, span, timeOfDay, when } from "./format.js";
import { ask, button, field, link } from "./widgets.js";

const MOST_SHOWN = 200,
  MOST_TEXT = 160;

export const loadSteps = (job, signal) =>
  job.has_steps ? ifOffered(get(["jobs", job.id, "steps"], null, { signal })) : null;

/** The steps in the order in which they were recorded, and the signals. */
export function steps(found) {
  const all = found ? found.steps || [] : [],
    signals = found ? found.signals || [] : [];
  if (!all.length && !signals.length) return null;
  const left = all.length - MOST_SHOWN;
  return h(
    "section",
    { class: "card", "aria-label": "Steps" },
    h("h2", null, found.after ? `Steps (the first ${exact(all.length)})` : `Steps (${exact(all.length)})`),
    found.undone
      ? h("p", { class: "dim" }, "The job has failed: what undoes these steps was enqueued.")
      : null,
    left > 0 ? h("p", { class: "dim" }, `${exact(left)} earlier ones are not shown.`) : null,
    h("ol", { class: "moments" }, all.slice(-MOST_SHOWN).map(row)),
    signals.length
      ? h(
          "ol",
          { class: "moments", "aria-label": "Signals" },
          signals.map((one) =>
            h(
              "li",
              { key: `signal ${one.name}` },
              at(one.at),
              h("b", null, "signal"),
              h("span", null, h("bdi", null, cut(one.name, 80)), " ", text(one.value)),
              one.by ? h("span", { class: "dim" }, " by ", name(one.by, 60)) : null,
            ),
          ),
        )
      : null,
  );
}

function row(one) {
  const open = one.ended_at === undefined;
  return h(
    "li",
    { key: `step ${one.number}`, class: open ? "claimed" : "done" },
    at(one.at),
    h("b", null, one.kind || "step"),
    h(
      "span",
      null,
      h("bdi", null, cut(one.name, 80)),
      one.key ? h("span", { class: "dim" }, " ", h("bdi", null, cut(one.key, 60))) : null,
      " ",
      outcome(one, open),
    ),
    one.took_ms === undefined ? null : h("span", { class: "dim" }, span(one.took_ms)),
  );
}

/** What came of a step, or what it waits for. */
function outcome(one, open) {
  if (one.children)
    return h(
      "span",
      { class: "ids" },
      one.children.slice(0, 10).map((id) => link(["job", id], null, { class: "mono" }, name(id, 36))),
      one.children.length > 10 ? ` and ${exact(one.children.length - 10)} more` : "",
    );
  if (one.kind === "sleep") return one.until ? ["until ", when(one.until)] : null;
  if (one.kind === "wait") {
    if (!open) return "timed out";
    return one.until ? ["for a signal, until ", when(one.until)] : "for a signal";
  }
  return text(one.result);
}

const at = (ms) => h("time", { datetime: new Date(ms).toISOString() }, timeOfDay(ms));

const text = (value) =>
  value === undefined || value === null ? null : h("bdi", { class: "mono" }, cut(JSON.stringify(value), MOST_TEXT));

/** A button that sends the signal that a job waits for. */
export function signalButton(reason, job, page) {
  return button(`Send ${cut(reason.name, 40)}…`, () =>
    ask({
      title: `Send the signal ${cut(reason.name, 80)}`,
      confirm: "Send",
      content: [
        field(
          "Value",
          h("textarea", { name: "value", rows: 4, spellcheck: "false", class: "mono", value: "null" }),
          "JSON. The first signal of a name counts.",
        ),
      ],
      does: async (form) => {
        const value = String(form.get("value"));
        try {
          JSON.parse(value);
        } catch (error) {
          throw new Error(`The value is not JSON: ${error.message}`);
        }
        const sent = await post(["jobs", job.id, "signals", reason.name], `{"value":${value}}`);
        if (!sent.count) throw new Error("The job has finished, or has a signal of this name.");
        page.refresh();
      },
    }),
  );
}
