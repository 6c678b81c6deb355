// The sheet of keyboard shortcuts.
import { h } from "./dom.js";
import { ask } from "./widgets.js";

const KEYS = [
  ["/", "search"],
  ["g o", "overview"],
  ["g e", "errors"],
  ["g w", "workers"],
  ["g s", "schedules"],
  ["g a", "audit"],
  ["j  k", "next and previous row"],
  ["Enter", "open the row"],
  ["r", "refresh now"],
  ["l", "live updates on or off"],
  ["?", "this sheet"],
  ["Esc", "close, or leave a field"],
];

export function help() {
  return ask({
    title: "Keyboard",
    confirm: "Close",
    content: [
      h(
        "dl",
        { class: "keys" },
        KEYS.map(([keys, text]) =>
          h(
            "div",
            null,
            h(
              "dt",
              null,
              keys
                .split(" ")
                .filter(Boolean)
                .map((one) => h("kbd", null, one)),
            ),
            h("dd", null, text),
          ),
        ),
      ),
      h(
        "p",
        { class: "dim" },
        "The same from a terminal: ",
        h("code", null, `tenure --url ${new URL(".", document.baseURI)} stats`),
      ),
    ],
  });
}
