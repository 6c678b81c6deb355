// The workers that are alive, and what they run.
import { h } from "./dom.js";
import { get, ifOffered } from "./api.js";
import { count, cut, name, now, shortId, span, when } from "./format.js";
import { empty, link, meter, table, th } from "./widgets.js";

const LATE_MS = 30000;

export const title = () => "Workers";
export const load = async ({ signal }) => ifOffered(get(["workers"], null, { signal }));

export function view(data, page) {
  if (!data) return [h("h1", null, "Workers"), empty("This service does not list workers.")];
  const busy = data.reduce((sum, one) => sum + (one.busy ?? one.running.length), 0);
  return [
    h(
      "div",
      { class: "title" },
      h("h1", null, "Workers"),
      page.sees("workers")
        ? h("span", { class: "dim" }, `${count(data.length)} alive, ${count(busy)} jobs running`)
        : null,
    ),
    page.sees("workers")
      ? null
      : h("p", { class: "dim" }, "This token sees only workers that serve nobody else."),
    data.length
      ? h("section", { class: "card", "aria-label": "Workers" }, list(data, page))
      : page.sees("workers")
        ? empty("No worker is alive. Start one with ", h("code", null, "tenure worker"), ".")
        : null,
  ];
}

function list(found) {
  return table(
    "Workers",
    ["Worker", "Host", "Queues", th("Busy", "n"), "Runs", th("Started", "n"), th("Seen", "n"), "Version"],
    [...found]
      .sort((a, b) => (a.name < b.name ? -1 : 1))
      .map((one) =>
        h(
          "tr",
          { key: one.name, class: now() - one.seen_at > LATE_MS ? "muted" : "" },
          h("th", { scope: "row" }, name(one.name, 50)),
          h("td", null, name(one.host, 40), one.pid ? h("span", { class: "dim" }, ` ${one.pid}`) : null),
          h(
            "td",
            null,
            one.queues
              .slice(0, 8)
              .map((queue, n) => [n ? ", " : "", link(["queue", queue], null, null, name(queue, 30))]),
            one.queues.length > 8 ? ` and ${one.queues.length - 8} more` : null,
          ),
          h("td", { class: "n" }, meter(one.busy ?? one.running.length, one.concurrency)),
          h(
            "td",
            null,
            h(
              "span",
              { class: "ids" },
              one.running.slice(0, 5).map((id) => link(["job", id], null, { class: "mono" }, shortId(id))),
              one.running.length > 5 ? h("span", { class: "dim" }, ` +${one.running.length - 5}`) : null,
            ),
          ),
          h("td", { class: "n" }, when(one.started_at)),
          h("td", { class: "n", title: `${span(now() - one.seen_at)} ago` }, when(one.seen_at)),
          h("td", null, cut(one.version || "", 20)),
        ),
      ),
  );
}
