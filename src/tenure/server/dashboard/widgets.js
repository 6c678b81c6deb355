// Parts that several pages use.
import { build, h, render, s } from "./dom.js";
import { brief, count, exact, span } from "./format.js";

export const NAMES = {
  __proto__: null,
  waiting: "waiting",
  delayed: "delayed",
  ready: "ready",
  pending: "pending",
  leased: "running",
  done: "done",
  dead: "dead",
  cancelled: "cancelled",
};

/** A link inside the dashboard. */
export function link(path, query, attributes, ...children) {
  return h("a", { href: hash(path, query), ...attributes }, ...children);
}

export function hash(path, query) {
  const known = Object.entries(query || {}).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  const text = new URLSearchParams(known).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export const chip = (state) => h("span", { class: `chip ${state}` }, NAMES[state] || state);

export function button(text, does, attributes) {
  return h("button", { type: "button", on: { click: does }, ...attributes }, text);
}

/** A button that copies a text, where the browser allows it: on this machine, and over https. */
export const copyButton = (text, of) =>
  navigator.clipboard
    ? button(
        "Copy",
        () =>
          navigator.clipboard.writeText(text).then(
            () => say("Copied."),
            (error) => say(error.message, "bad"),
          ),
        { class: "quiet", "aria-label": `Copy ${of}` },
      )
    : null;

export const empty = (...text) => h("p", { class: "empty" }, ...text);

/** A number in a table: dim if it is zero. */
export function number(n, kind) {
  if (n === null || n === undefined) return h("td", { class: "n dim" }, "–");
  const title = n >= 100000 ? exact(n) : null;
  return h("td", { class: `n ${n ? kind || "" : "zero"}`, title }, count(n));
}

export const duration = (ms) =>
  h("td", { class: `n ${ms ? "" : "zero"}` }, ms === null || ms === undefined ? "–" : span(ms));

/** How long something has waited: a minute is late. */
export function age(ms) {
  const known = ms !== null && ms !== undefined;
  return h("td", { class: `n ${known ? (ms > 60000 ? "late" : "") : "zero"}` }, known ? brief(ms) : "–");
}

/** A table that can be scrolled sideways, with a caption for screen readers. */
export function table(caption, heads, rows, attributes) {
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": caption, ...attributes },
    h(
      "table",
      null,
      h("caption", { class: "unseen" }, caption),
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          heads.map((head) => (typeof head === "string" ? h("th", { scope: "col" }, head) : head)),
        ),
      ),
      h("tbody", null, rows),
    ),
  );
}

export const th = (text, kind, title) => h("th", { scope: "col", class: kind, title }, text);

/** The head of a column that needs none, except for screen readers. */
export const quietHead = (text, kind) =>
  h("th", { scope: "col", class: kind }, h("span", { class: "unseen" }, text));

/** A line of the last minutes. The bars of failures stand below it. */
export function spark(points, failures, label) {
  if (!points || !points.length) return h("span", { class: "dim" }, "–");
  const width = 120,
    height = 24,
    most = Math.max(1, ...points),
    step = width / Math.max(1, points.length - 1);
  const y = (n) => (height - 2 - (n / most) * (height - 4)).toFixed(1);
  const line = points.map((n, at) => `${(at * step).toFixed(1)} ${y(n)}`).join(" L ");
  const bars = (failures || []).map((n, at) =>
    n
      ? s("rect", {
          class: "spark-bad",
          x: Math.max(0, at * step - 1).toFixed(1),
          width: 2.4,
          y: height - 4,
          height: 4,
        })
      : null,
  );
  return s(
    "svg",
    {
      class: "spark",
      viewBox: `0 0 ${width} ${height}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    s("path", { class: "spark-area", d: `M 0 ${height} L ${line} L ${width} ${height} Z` }),
    s("path", { class: "spark-line", d: `M ${line}` }),
    bars,
  );
}

/** Parts of a whole as one bar, such as the jobs of a queue by state. */
export function stack(parts, label) {
  const all = parts.reduce((sum, [, n]) => sum + n, 0);
  if (!all) return h("span", { class: "dim" }, "–");
  let at = 0;
  return s(
    "svg",
    { class: "stack", viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": label },
    parts
      .filter(([, n]) => n)
      .map(([state, n]) => {
        const wide = Math.max((n / all) * 100, 1),
          bar = s("rect", {
            class: `fill-${state}`,
            x: at.toFixed(2),
            y: 0,
            width: wide.toFixed(2),
            height: 6,
          });
        at += wide;
        return bar;
      }),
  );
}

/** How much of a limit is used. */
export function meter(used, limit) {
  if (limit === null || limit === undefined)
    return h("span", null, count(used), h("span", { class: "dim" }, " / ∞"));
  const part = limit ? Math.min(1, used / limit) : 1;
  return h(
    "span",
    { class: "meter" },
    `${count(used)} / ${count(limit)} `,
    s(
      "svg",
      { class: "bar", viewBox: "0 0 40 6", "aria-hidden": "true" },
      s("rect", { class: "bar-back", width: 40, height: 6, rx: 3 }),
      s("rect", {
        class: part >= 1 ? "bar-full" : "bar-used",
        width: (part * 40).toFixed(1),
        height: 6,
        rx: 3,
      }),
    ),
  );
}

// Messages ---------------------------------------------------------------------------------------

let hiding = 0;

/** Show what was done, or why not, for a few seconds. */
export function say(text, kind = "good") {
  const place = document.getElementById("said");
  render(place, h("div", { class: `toast ${kind}` }, text));
  clearTimeout(hiding);
  hiding = setTimeout(() => render(place), kind === "bad" ? 10000 : 5000);
}

/** Ask before doing something. `content` gives what the dialog shows; `does` gets its form. */
export function ask({
  title,
  content = [],
  confirm = "OK",
  leave = "Cancel",
  danger = false,
  does = null,
  wide = false,
}) {
  return new Promise((resolve) => {
    const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
    const id = `title-${Date.now()}`;
    const dialog = build(
      h(
        "dialog",
        { "aria-labelledby": id, class: wide ? "wide" : "" },
        h(
          "form",
          { method: "dialog" },
          h("h2", { id }, title),
          content,
          trouble,
          h(
            "div",
            { class: "buttons" },
            does ? button(leave, () => dialog.close("")) : null,
            h("button", { type: "submit", class: danger ? "danger" : "primary", value: "yes" }, confirm),
          ),
        ),
      ),
    );
    const form = dialog.querySelector("form"),
      told = dialog.querySelector(".trouble");
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (!does) {
        dialog.close("yes");
        return;
      }
      const yes = dialog.querySelector("button[value=yes]");
      yes.disabled = true;
      try {
        await does(new FormData(form), dialog);
        dialog.close("yes");
      } catch (error) {
        told.textContent = error.message;
        told.hidden = false;
      } finally {
        yes.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A labelled field of a form. */
export function field(label, control, hint) {
  return h(
    "label",
    { class: "field" },
    h("span", null, label),
    control,
    hint ? h("small", null, hint) : null,
  );
}

/** Why something is done, for the audit. */
export const reasonField = () =>
  field(
    "Reason",
    h("input", { name: "reason", maxlength: 200, autocomplete: "off" }),
    "It is recorded in the audit log.",
  );
