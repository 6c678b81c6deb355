// JSON as a tree that opens part by part, or as text. Only what is open is built, so that a payload
// of a megabyte, or one that is nested deeply, does not freeze the page.
import { build, h, widget } from "./dom.js";
import { bytes, exact, visible } from "./format.js";
import { Exact } from "./api.js";
import { copyButton } from "./widgets.js";

const MOST_ITEMS = 100,
  MOST_TEXT = 400,
  MOST_RAW = 20000;

/** A titled view of a JSON value. Its parts stay open while the value stays the same. */
export function jsonView(key, title, value, text) {
  return widget(key, text, () => {
    const body = document.createElement("div");
    body.className = "json";
    body.append(...nodes(value, 0));
    const size = build(h("span", { class: "dim" }, bytes(new Blob([text]).size)));
    const toggle = build(h("button", { type: "button", class: "quiet", "aria-pressed": "false" }, "Text"));
    const box = build(h("section", { class: "card", "aria-label": title }));
    const head = build(h("div", { class: "card-head" }));
    head.append(build(h("h2", null, title)), size, toggle);
    const copy = copyButton(text, `the ${title.toLowerCase()}`);
    if (copy) head.append(build(copy));
    box.append(head, body);
    toggle.addEventListener("click", () => {
      const raw = toggle.getAttribute("aria-pressed") !== "true";
      toggle.setAttribute("aria-pressed", String(raw));
      body.replaceChildren(...(raw ? [asText(text)] : nodes(value, 0)));
    });
    return box;
  });
}

function asText(text) {
  const pre = document.createElement("pre");
  pre.tabIndex = 0;
  let shown = text;
  if (text.length < 1e6)
    try {
      shown = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      /* deep */
    }
  if (/\d{16}|[eE]\d/.test(text)) shown = text; // numbers that JavaScript would change
  return cutText(pre, shown, MOST_RAW);
}

/** Put a text into a node, cut, with a button that shows the rest. fromEnd: its end is shown. */
export function cutText(node, text, most, fromEnd = false) {
  node.textContent = visible(fromEnd ? text.slice(-most) : text.slice(0, most));
  if (text.length > most) {
    const more = build(
      h("button", { type: "button", class: "more" }, `show all ${exact(text.length)} characters`),
    );
    more.addEventListener("click", () => {
      node.textContent = visible(text);
    });
    if (fromEnd) node.prepend(more, " …");
    else node.append("… ", more);
  }
  return node;
}

function nodes(value, depth) {
  if (value instanceof Exact) return [leaf("number", value.text)];
  if (value === null || typeof value !== "object") return [scalar(value)];
  const entries = Array.isArray(value) ? value.map((one, n) => [n, one]) : Object.entries(value);
  if (!entries.length) return [leaf("empty-value", Array.isArray(value) ? "[]" : "{}")];
  const list = document.createElement("ul");
  add(list, entries, 0, depth);
  return [list];
}

function add(list, entries, from, depth) {
  for (const [name, value] of entries.slice(from, from + MOST_ITEMS)) list.append(entry(name, value, depth));
  const left = entries.length - from - MOST_ITEMS;
  if (left > 0) {
    const item = build(
      h("li", null, h("button", { type: "button", class: "more" }, `show more (${exact(left)} left)`)),
    );
    item.firstChild.addEventListener("click", () => {
      item.remove();
      add(list, entries, from + MOST_ITEMS, depth);
    });
    list.append(item);
  }
}

function entry(name, value, depth) {
  const item = document.createElement("li");
  const label = leaf("key", visible(String(name)).slice(0, 300));
  const holds =
    value !== null && typeof value === "object" && !(value instanceof Exact) && Object.keys(value).length;
  if (!holds) {
    item.append(label, ": ", ...nodes(value, depth));
    return item;
  }
  const inside = document.createElement("details");
  const head = document.createElement("summary");
  const size = Array.isArray(value) ? `[${exact(value.length)}]` : `{${exact(holds)}}`;
  head.append(label, " ", leaf("dim", size));
  inside.append(head);
  let built = false;
  const open = () => {
    if (!built) {
      built = true;
      inside.append(...nodes(value, depth + 1));
    }
  };
  inside.addEventListener("toggle", () => {
    if (inside.open) open();
  });
  if (depth < 1 && holds <= 20) {
    open();
    inside.open = true;
  }
  item.append(inside);
  return item;
}

function scalar(value) {
  if (typeof value !== "string") return leaf(value === null ? "empty-value" : typeof value, String(value));
  const node = leaf("string", "");
  return cutText(node, JSON.stringify(value), MOST_TEXT);
}

function leaf(kind, text) {
  const node = document.createElement("bdi");
  node.className = kind;
  node.textContent = text;
  return node;
}
