// Asks for a token, which is kept for this tab only.
import { h } from "./dom.js";
import { token } from "./api.js";

export function signIn(trouble, then) {
  const submit = (event) => {
    event.preventDefault();
    const text = String(new FormData(event.currentTarget).get("token")).trim();
    if (!text) return;
    token.set(text);
    then();
  };
  return h(
    "section",
    { class: "card sign-in", "aria-label": "Sign in" },
    h("h1", null, "Sign in"),
    h(
      "form",
      { on: { submit } },
      h(
        "label",
        { class: "field" },
        h("span", null, "Token"),
        h("input", { name: "token", type: "password", autocomplete: "off", required: true, autofocus: true }),
      ),
      trouble ? h("p", { class: "trouble", role: "alert" }, trouble) : null,
      h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Sign in")),
    ),
    h(
      "p",
      { class: "dim" },
      "The token is kept until this tab is closed. Create one with ",
      h("code", null, "tenure token create NAME --scope read"),
      "; actions need the scope ",
      h("code", null, "admin"),
      ".",
    ),
  );
}
