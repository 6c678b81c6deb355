// Schedules: what fires when.
import { h } from "./dom.js";
import { del, get, ifOffered, post } from "./api.js";
import { cut, name, now, when } from "./format.js";
import { ask, button, empty, link, quietHead, reasonField, say, table, th } from "./widgets.js";

export const title = () => "Schedules";
export const load = async ({ signal }) => ifOffered(get(["schedules"], null, { signal }));

export function view(data, page) {
  if (!data || !data.length)
    return [
      h("h1", null, "Schedules"),
      empty(
        "No schedules. Create one with ",
        h("code", null, "tenure schedules put"),
        ", or declare it in code with ",
        h("code", null, "@app.cron"),
        ".",
      ),
    ];
  const admin = page.can("admin");
  return [
    h("h1", null, "Schedules"),
    h(
      "section",
      { class: "card", "aria-label": "Schedules" },
      table(
        "Schedules",
        [
          "Name",
          "Cron",
          "Queue",
          "Kind",
          th("Next", "n"),
          th("Last", "n"),
          "Declared by",
          admin ? quietHead("Actions") : null,
        ].filter((one) => one !== null),
        data.map((one) =>
          h(
            "tr",
            { key: one.name, class: one.disabled ? "paused" : "" },
            h(
              "th",
              { scope: "row" },
              name(one.name, 60),
              one.disabled ? h("span", { class: "chip paused" }, "paused") : null,
            ),
            h("td", { class: "mono" }, cut(one.cron, 60), h("span", { class: "dim" }, ` ${one.tz || "UTC"}`)),
            h("td", null, link(["queue", one.job.queue], null, null, name(one.job.queue, 30))),
            h("td", null, name(one.job.kind, 40)),
            h(
              "td",
              { class: `n ${!one.disabled && one.next_at < now() - 60000 ? "late" : ""}` },
              one.disabled ? "–" : when(one.next_at),
            ),
            h("td", { class: "n" }, one.last_at ? when(one.last_at) : h("span", { class: "dim" }, "never")),
            h("td", null, name(one.owner, 40)),
            admin ? h("td", { class: "n actions" }, buttons(one, page)) : null,
          ),
        ),
      ),
    ),
  ];
}

async function pause(one, page) {
  const done = await ask({
    title: `Pause the schedule ${cut(one.name, 40)}?`,
    confirm: "Pause",
    content: [
      h("p", null, "It does not fire. An app that declares it resumes it when it starts."),
      reasonField(),
    ],
    does: (form) =>
      post(["schedules", one.name, "pause"], undefined, { reason: form.get("reason") }),
  });
  if (done) say("Paused.");
  page.refresh();
}

function buttons(one, page) {
  const verb = one.disabled ? "resume" : "pause",
    of = cut(one.name, 40);
  const run = async () => {
    const made = await post(["schedules", one.name, "run-now"]);
    say(made.created ? "Its job is enqueued." : "A job with its unique key has not finished.");
    page.leave(["job", made.id]);
  };
  return [
    button("Run now", () => run().catch((error) => say(error.message, "bad")), {
      class: "quiet",
      "aria-label": `Run now: ${of}`,
    }),
    button(
      one.disabled ? "Resume" : "Pause",
      () =>
        one.disabled
          ? page.act(() => post(["schedules", one.name, verb]), "Resumed.")
          : pause(one, page),
      { class: "quiet", "aria-label": `${verb} ${of}` },
    ),
    button(
      "Delete…",
      async () => {
        const done = await ask({
          title: `Delete the schedule ${of}?`,
          confirm: "Delete",
          danger: true,
          content: [
            h("p", null, "It does not fire any more. An app that declares it puts it back when it starts."),
            reasonField(),
          ],
          does: (form) => del(["schedules", one.name], null, { reason: form.get("reason") }),
        });
        if (done) page.refresh();
      },
      { class: "quiet", "aria-label": `Delete ${of}` },
    ),
  ];
}
