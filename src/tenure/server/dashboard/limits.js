// Limits and pauses of a queue, its tenants and its groups.
import { h } from "./dom.js";
import { del, post, put } from "./api.js";
import { cut, name } from "./format.js";
import { ask, button, field, quietHead, reasonField, say, table, th } from "./widgets.js";

/** The button that pauses or resumes a tenant, a group or the whole queue. A pause is asked for, with
 * a reason: whoever wonders later why nothing runs is told it. */
export function scopePause(queue, scope, paused, page, attributes = { class: "quiet" }) {
  const of = cut(scope.group || scope.tenant || queue, 40);
  return button(
    paused ? "Resume" : "Pause",
    () =>
      paused
        ? page.act(() => post(["queues", queue, "resume"], scope), `${of} runs again.`)
        : askToPause(queue, scope, of, page),
    { "aria-label": `${paused ? "Resume" : "Pause"} ${of}`, ...attributes },
  );
}

async function askToPause(queue, scope, of, page) {
  const done = await ask({
    title: `Pause ${of}?`,
    confirm: "Pause",
    content: [h("p", null, "Its jobs are no longer started; those that run continue."), reasonField()],
    does: (form) => post(["queues", queue, "pause"], scope, { reason: form.get("reason") }),
  });
  if (done) say(`${of} is paused.`);
  page.refresh();
}

const FIELDS = [
  ["concurrency", "Jobs at once", 0],
  ["rate", "Jobs started", 1],
  ["per", "per seconds", 0.001],
  ["weight", "Weight", 1],
];

/** The table of all limits of a queue. */
export function limits(queue, data, page) {
  const whole = data.limits.find((one) => one.tenant === undefined && one.group === undefined);
  const rows = [whole || {}, ...data.limits.filter((one) => one !== whole)];
  return h(
    "section",
    { class: "card", "aria-label": "Limits" },
    table(
      "Limits",
      ["Of", "Tenant", "Group", ...FIELDS.map(([, label]) => th(label, "n")), quietHead("Actions")],
      rows.map((one) => limitRow(queue, one, page)),
    ),
    page.can("admin")
      ? h(
          "div",
          { class: "pager" },
          button("Add a limit for a tenant or group", () => editLimit(queue, null, {}, page)),
        )
      : null,
  );
}

function limitRow(queue, one, page) {
  const scope = {
    ...(one.tenant === undefined ? {} : { tenant: one.tenant }),
    ...(one.group === undefined ? {} : { group: one.group }),
  };
  const what = one.group !== undefined ? "group" : one.tenant !== undefined ? "tenant" : "queue";
  const value = { ...one, per: one.per_ms === undefined ? undefined : one.per_ms / 1000 };
  const id = JSON.stringify(scope),
    admin = page.can("admin");
  const edited = (of) => async (event) => {
    const text = event.currentTarget.value.trim();
    if (text === String(value[of] ?? "")) return;
    if (text === "") {
      await editLimit(queue, scope, one, page);
      return;
    }
    const body = { ...scope, [of]: Number(text) };
    if (of === "rate") body.per = value.per ?? 1;
    if (of === "per") body.rate = value.rate ?? 1;
    await page.act(() => put(["queues", queue, "limits"], body), `${what}: ${of} is ${text}.`);
  };
  return h(
    "tr",
    { key: id, class: one.paused ? "paused" : "" },
    h("th", { scope: "row" }, what, one.paused ? h("span", { class: "chip paused" }, "paused") : null),
    h("td", null, one.tenant === undefined ? "–" : one.tenant === "*" ? "each tenant" : name(one.tenant)),
    h("td", null, name(one.group)),
    FIELDS.map(([of, label, least]) =>
      h(
        "td",
        { class: "n" },
        admin
          ? h("input", {
              type: "number",
              class: "cell",
              min: least,
              step: of === "per" ? "any" : 1,
              value: value[of] ?? "",
              placeholder: "–",
              "aria-label": `${label} of ${what} ${cut(one.group || one.tenant || queue, 40)}`,
              on: { change: edited(of) },
            })
          : (value[of] ?? "–"),
      ),
    ),
    h(
      "td",
      { class: "n" },
      admin
        ? [
            scopePause(queue, scope, one.paused, page),
            " ",
            Object.keys(one).length
              ? button("Remove…", () => remove(queue, scope, what, page), {
                  class: "quiet",
                  "aria-label": `Remove the limits of ${what}`,
                })
              : null,
          ]
        : null,
    ),
  );
}

async function remove(queue, scope, what, page) {
  const done = await ask({
    title: `Remove the limits of this ${what}?`,
    confirm: "Remove",
    danger: true,
    content: [h("p", null, "Jobs that they hold back may start at once."), reasonField()],
    does: (form) => del(["queues", queue, "limits"], scope, { reason: form.get("reason") }),
  });
  if (done) {
    say("The limits are removed.");
    page.refresh();
  }
}

/** Ask for the limits of a tenant or group; if scope is null, ask for its name, too. */
export function editLimit(queue, scope, now_, page) {
  const value = { ...now_, per: now_.per_ms ? now_.per_ms / 1000 : undefined };
  return ask({
    title: scope
      ? `Limits of ${cut(scope.group || scope.tenant || queue, 60)}`
      : "Limits of a tenant or group",
    confirm: "Set",
    content: [
      scope
        ? null
        : field(
            "Tenant",
            h("input", { name: "tenant", autocomplete: "off" }),
            "* for each tenant; empty for a group of all tenants",
          ),
      scope ? null : field("Group", h("input", { name: "group", autocomplete: "off" })),
      FIELDS.map(([of, label, least]) =>
        field(
          label,
          h("input", {
            name: of,
            type: "number",
            min: least,
            step: of === "per" ? "any" : 1,
            value: value[of] ?? "",
          }),
        ),
      ),
      h("p", { class: "dim" }, "Fields that are left empty do not change."),
      reasonField(),
    ],
    does: async (form) => {
      const body = scope ? { ...scope } : {};
      for (const of of ["tenant", "group"]) if (form.get(of)) body[of] = form.get(of);
      for (const [of] of FIELDS) if (form.get(of)) body[of] = Number(form.get(of));
      await put(["queues", queue, "limits"], body, { reason: form.get("reason") });
      page.refresh();
    },
  });
}
