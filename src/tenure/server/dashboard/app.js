// The frame: routes, updates, the connection, the keyboard.
import { h, render } from "./dom.js";
import { Away, Problem, get, ifOffered, token } from "./api.js";
import { cut, timeOfDay, visible, zone } from "./format.js";
import { button, hash, link, say } from "./widgets.js";
import { help } from "./help.js";
import { signIn } from "./sign_in.js";
import * as overview from "./overview.js";
import * as queue from "./queue.js";
import * as job from "./job.js";
import * as errors from "./errors.js";
import * as workers from "./workers.js";
import * as schedules from "./schedules.js";
import * as audit from "./audit.js";
import * as search from "./search.js";

const PAGES = { __proto__: null, "": overview, queue, job, errors, workers, schedules, audit, search };
const NAV = [
  ["", "Overview"],
  ["errors", "Errors"],
  ["workers", "Workers"],
  ["schedules", "Schedules"],
  ["audit", "Audit"],
];
const POLL_MS = 2000,
  HINT_MS = 1000,
  LONGEST_MS = 15000,
  HINT_WAIT = 25;

const main = document.getElementById("main"),
  top_ = document.getElementById("top");
let offersBulk = false; // whether the service has actions on many jobs
let me = null,
  page = null,
  data = null,
  live = true,
  lost = 0,
  failures = 0,
  timer = 0,
  loadedAt = 0,
  triedAt = 0,
  loading = null;

// Routes -----------------------------------------------------------------------------------------

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  let parts;
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    parts = ["unknown"];
  }
  return { path: parts, query: Object.fromEntries(new URLSearchParams(query || "")) };
}

function go(path, query) {
  location.hash = hash(path, query);
}

function open() {
  const next = route(),
    module = PAGES[next.path[0] || ""];
  if (page) page.gone.abort();
  const gone = new AbortController();
  const moved = !page || page.path.join("/") !== next.path.join("/");
  page = {
    ...next,
    module,
    gone,
    signal: gone.signal,
    can,
    sees,
    tenants: () => me.tenants,
    change: (query) => go(next.path, { ...next.query, ...query }),
    narrow: (query) => location.replace(hash(next.path, { ...next.query, ...query })), // as one types
    leave: (path, query) => go(path, query),
    refresh: () => refresh(true),
    offersBulk: () => offersBulk,
    act,
  };
  if (moved) {
    data = null;
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
  if (!module || (["queue", "job"].includes(next.path[0]) && !next.path[1])) {
    page.module = null;
    show(notFound("There is no such page."));
    header();
    return;
  }
  document.title = `${visible(cut(module.title(page), 60))} · Tenure`;
  header();
  if (moved) main.setAttribute("aria-busy", "true");
  refresh(true);
}

const can = (scope) => Boolean(me && me.scopes.includes(scope));

/** Whether the token may see what covers all tenants, or all queues. */
function sees(what) {
  if (!me) return false;
  if (what === "errors" || what === "rates") return !me.tenants && !(me.queues && me.queues.length > 1);
  if (what === "group totals") return !me.tenants;
  return !["workers", "audit"].includes(what) || !(me.tenants || me.queues);
}

async function act(does, said) {
  try {
    await does();
    say(said);
  } catch (error) {
    say(error.message, "bad");
  }
  await refresh(true);
}

// Updates ----------------------------------------------------------------------------------------

async function refresh(forced = false) {
  clearTimeout(timer);
  if (!page || !page.module) return;
  if (loading && !forced) return;
  const here = page,
    mine = {};
  loading = mine;
  triedAt = Date.now();
  try {
    if (!me) await greet();
    const found = await here.module.load(here);
    if (here !== page || loading !== mine) return;
    if (here.path[0] === "search" && data === null) {
      const one = search.only(found);
      if (one) {
        location.replace(hash(one));
        return;
      }
    }
    data = found;
    failures = 0;
    loadedAt = Date.now();
    connected();
    show(here.module.view(found, here));
  } catch (error) {
    if (error.name === "AbortError" || here !== page || loading !== mine) return;
    failed(error);
  } finally {
    if (loading === mine) {
      loading = null;
      main.removeAttribute("aria-busy");
      later();
    }
  }
}

function later() {
  clearTimeout(timer);
  if (document.hidden || !live || !page || !page.module || signingIn) return;
  if (page.module.once && !failures) return;
  timer = setTimeout(refresh, failures ? Math.min(LONGEST_MS, POLL_MS * 2 ** (failures - 1)) : POLL_MS);
}

function failed(error) {
  if (error instanceof Problem && error.status === 401) {
    askForToken(token.get() ? "This token is not known." : "");
    return;
  }
  if (error instanceof Problem && error.status === 429) {
    failures += 1;
    return;
  }
  if (error instanceof Away) {
    failures += 1;
    if (!lost) {
      lost = Date.now();
      header();
    }
    render(
      document.getElementById("connection"),
      h(
        "div",
        { class: "lost" },
        h("b", null, "Connection lost. "),
        loadedAt ? `What you see is from ${timeOfDay(loadedAt)}. ` : "",
        "Trying again… ",
        h("span", { class: "dim" }, cut(error.message, 160)),
        " ",
        button("Try now", () => refresh(true), { class: "quiet" }),
      ),
    );
    if (!data) show(h("p", { class: "empty" }, "Waiting for the service…"));
    return;
  }
  if (error instanceof Problem) {
    show(
      error.status === 404
        ? notFound(error.message)
        : h(
            "div",
            null,
            h("h1", null, "This cannot be shown"),
            h("p", { class: "trouble" }, cut(error.message, 500)),
          ),
    );
    failures = 0;
    return;
  }
  throw error;
}

function connected() {
  if (lost) {
    lost = 0;
    header();
    render(document.getElementById("connection"));
    say("Connected again.");
  }
}

const notFound = (text) => [
  h("h1", null, "Not found"),
  h("p", { class: "empty" }, cut(text, 300)),
  h("p", null, link([], null, null, "Overview")),
];

function show(...content) {
  render(main, ...content);
}

/** Long polls for a hint that something changed, so that pages change sooner. */
async function listen() {
  let since = "";
  for (;;) {
    if (document.hidden || !live || signingIn || failures || !me) {
      await sleep(POLL_MS);
      continue;
    }
    try {
      const found = await ifOffered(get(["changes"], { since, wait: since ? HINT_WAIT : 0 }));
      if (found === null) return;
      if (since && found.version !== since) {
        await sleep(Math.max(0, triedAt + HINT_MS - Date.now()));
        if (!document.hidden && live && !page?.module?.once) refresh();
      }
      since = found.version;
    } catch {
      await sleep(POLL_MS * 2);
    }
  }
}

const sleep = (ms) =>
  new Promise((resolve) => {
    setTimeout(resolve, ms);
  });

// Who is here ------------------------------------------------------------------------------------

let signingIn = false;

async function greet() {
  me = await get(["me"]);
  offersBulk = can("admin") && (await ifOffered(get(["bulk"])).catch(() => null)) !== null;
  const banner = document.getElementById("banner");
  banner.hidden = !me.banner;
  banner.textContent = me.banner;
  document.getElementById("about").textContent = `Tenure ${me.version}`;
  document.getElementById("zone").textContent = `Times are in ${zone()}`;
  header();
}

function askForToken(trouble) {
  signingIn = true;
  me = null;
  data = null;
  header();
  show(
    signIn(trouble, () => {
      signingIn = false;
      open();
    }),
  );
  const field = main.querySelector("input");
  if (field) field.focus();
}

function signOut() {
  token.forget();
  askForToken("");
}

// The head of the page ---------------------------------------------------------------------------

function header() {
  const current = page ? page.path[0] || "" : "";
  const kind = me && /prod/i.test(me.environment) ? "prod" : "other";
  const find = (event) => {
    event.preventDefault();
    const q = String(new FormData(event.currentTarget).get("q")).trim();
    if (q) go(["search"], { q });
  };
  render(
    top_,
    link([], null, { class: "brand" }, "Tenure"),
    me && me.environment ? h("span", { class: `env ${kind}` }, me.environment) : null,
    me
      ? h(
          "nav",
          { class: "nav", "aria-label": "Pages" },
          NAV.filter(([path]) => sees(path)).map(([path, text]) =>
            link(path ? [path] : [], null, { "aria-current": path === current ? "page" : null }, text),
          ),
        )
      : null,
    me
      ? h(
          "form",
          { class: "search", role: "search", on: { submit: find } },
          h("input", {
            id: "search",
            name: "q",
            type: "search",
            placeholder: "Search  /",
            "aria-label": "Search jobs, unique keys, queues, tenants, groups and kinds",
            autocomplete: "off",
            spellcheck: "false",
            maxlength: 500,
          }),
        )
      : null,
    me
      ? h(
          "div",
          { class: "who" },
          button(!live ? "Paused" : lost ? "Lost" : "Live", toggleLive, {
            class: `quiet live ${live && !lost ? "on" : ""}`,
            "aria-pressed": String(live),
            title: "Live updates (l)",
          }),
          button("?", help, { class: "quiet", "aria-label": "Keyboard shortcuts" }),
          me.name
            ? h(
                "span",
                { class: "dim" },
                h("bdi", null, cut(me.name, 30)),
                can("admin") || can("produce") ? "" : " (read only)",
              )
            : null,
          token.get() ? button("Sign out", signOut, { class: "quiet" }) : null,
        )
      : null,
  );
}

function toggleLive() {
  live = !live;
  header();
  if (live) refresh(true);
  else clearTimeout(timer);
}

// The keyboard -----------------------------------------------------------------------------------

const GO = { __proto__: null, o: [], e: ["errors"], w: ["workers"], s: ["schedules"], a: ["audit"] };
let prefix = 0;

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || signingIn)
    return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (Date.now() - prefix < 1500 && GO[event.key]) {
    prefix = 0;
    go(GO[event.key]);
    return;
  }
  const does = {
    "/": () => document.getElementById("search")?.focus(),
    "?": help,
    r: () => refresh(true),
    l: toggleLive,
    g: () => {
      prefix = Date.now();
    },
    j: () => row(1),
    k: () => row(-1),
  }[event.key];
  if (does) {
    event.preventDefault();
    does();
  }
}

/** Move the focus to the link of the next or previous row. */
function row(step) {
  const links = [...main.querySelectorAll("tbody tr th a, .attention li a, .found a")];
  const at = links.indexOf(document.activeElement);
  const next = links[at === -1 ? (step > 0 ? 0 : links.length - 1) : at + step];
  if (next) {
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", () => {
  if (!signingIn) open();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh(true);
});
addEventListener("online", () => refresh(true));
addEventListener("keydown", pressed);
open();
listen();
