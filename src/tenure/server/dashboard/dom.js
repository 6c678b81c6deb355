// A small virtual DOM. Pages describe what is shown; what is there already is changed in place, so
// that focus, scrolling and open parts survive an update. Text only ever becomes text nodes.

const SVG = "http://www.w3.org/2000/svg";
const LINKS = /^(#|docs$|openapi\.json$)/; // nothing that comes from a job can become another link
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "selected"]);

/** An element. Attributes that are null or false are left out; `on` maps events to functions. */
export function h(tag, attributes, ...children) {
  const { key = null, on = null, ...rest } = attributes || {};
  return { tag, key, on, attributes: rest, children: flat(children), svg: false };
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return { ...h(tag, attributes, ...children), svg: true };
}

/** A part that builds its own node, once for each value of `sign`. */
export function widget(key, sign, build) {
  return { tag: "#widget", key, sign, build };
}

function flat(children) {
  const found = [];
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    found.push(typeof child === "object" ? child : { tag: "#text", key: null, text: String(child) });
  }
  return found;
}

/** Update the children of a node to these. */
export function render(parent, ...children) {
  reconcile(parent, flat(children));
}

/** A new node. */
export function build(virtual) {
  return create(flat([virtual])[0]);
}

function create(virtual) {
  let node;
  if (virtual.tag === "#text") node = document.createTextNode(virtual.text);
  else if (virtual.tag === "#widget") node = virtual.build();
  else node = virtual.svg ? document.createElementNS(SVG, virtual.tag) : document.createElement(virtual.tag);
  node.was = { tag: virtual.tag, key: virtual.key, attributes: {}, on: null, sign: virtual.sign };
  if (virtual.attributes) fill(node, virtual);
  return node;
}

function fill(node, virtual) {
  reconcile(node, virtual.children);
  const before = node.was.attributes;
  for (const name of Object.keys(before)) if (!(name in virtual.attributes)) set(node, name, null);
  for (const [name, value] of Object.entries(virtual.attributes)) {
    if (before[name] !== value) set(node, name, value);
  }
  for (const name of Object.keys(virtual.on || {})) {
    if (!node.was.on || !(name in node.was.on)) node.addEventListener(name, heard);
  }
  node.was.attributes = virtual.attributes;
  node.was.on = virtual.on;
}

function heard(event) {
  const does = this.was.on && this.was.on[event.type];
  if (does) return does.call(this, event);
}

function set(node, name, value) {
  if (name === "href" && !LINKS.test(value)) throw new Error(`not a link: ${value}`);
  if (name === "style" || name.startsWith("on")) throw new Error(`not an attribute: ${name}`);
  if (PROPERTIES.has(name)) node[name] = value ?? (name === "value" ? "" : false);
  else if (name === "open") {
    if (value && !("open" in node.was.attributes)) node.open = true;
  } else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : value);
}

function fits(node, virtual) {
  const was = node && node.was;
  return was && was.tag === virtual.tag && was.key === virtual.key && was.sign === virtual.sign;
}

function update(node, virtual) {
  if (virtual.tag === "#text") {
    if (node.data !== virtual.text) node.data = virtual.text;
  } else if (virtual.tag !== "#widget") fill(node, virtual);
}

function reconcile(parent, wanted) {
  const keyed = new Map();
  for (const node of parent.childNodes) if (node.was && node.was.key !== null) keyed.set(node.was.key, node);
  let next = parent.firstChild;
  for (const virtual of wanted) {
    let node = virtual.key === null ? next : keyed.get(virtual.key);
    if (fits(node, virtual)) update(node, virtual);
    else node = create(virtual);
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}
