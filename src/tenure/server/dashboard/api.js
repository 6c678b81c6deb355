// Calls of the service. The token is kept for this tab only.

const BASE = new URL("v1/", document.baseURI);
const KEY = `tenure-token ${new URL(".", document.baseURI).pathname}`;

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || `the service responded with ${status}`);
    this.status = status;
    this.code = body.code || "";
    this.field = body.field || "";
  }

  get isMissing() {
    return this.status === 404 && this.code === "no_such_route";
  }
}

/** The service cannot be reached, or cannot reach its store. */
export class Away extends Error {}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

function address(parts, query) {
  if (parts.some((part) => part === "." || part === ".." || part === "")) {
    throw new Problem(400, { detail: "this name cannot be in an address; use the command line" });
  }
  const url = new URL(parts.map(encodeURIComponent).join("/"), BASE);
  for (const [name, value] of Object.entries(query || {})) {
    if (value !== null && value !== undefined) url.searchParams.set(name, value);
  }
  return url;
}

async function call(method, parts, { query, body, signal, read, reason } = {}) {
  const headers = {};
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  if (reason) headers["tenure-reason"] = encodeURIComponent(reason);
  if (body !== undefined) headers["content-type"] = "application/json";
  let response, text;
  try {
    response = await fetch(address(parts, query), {
      method,
      headers,
      signal,
      cache: "no-store",
      credentials: "same-origin",
      body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
    });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Problem) throw error;
    throw new Away("The service cannot be reached.");
  }
  if (response.ok) return (read || JSON.parse)(text);
  let told = {};
  try {
    told = JSON.parse(text);
  } catch {
    /* not from the service itself */
  }
  if (response.status >= 502 || (response.status >= 500 && !told.code)) {
    throw new Away(told.detail || "The service cannot be reached.");
  }
  throw new Problem(response.status, told);
}

export const get = (parts, query, options) => call("GET", parts, { query, ...options });
export const post = (parts, body, options) => call("POST", parts, { body, ...options });
export const put = (parts, body, options) => call("PUT", parts, { body, ...options });
export const patch = (parts, body) => call("PATCH", parts, { body });
export const del = (parts, query, options) => call("DELETE", parts, { query, ...options });

/** What a promise resolves to, or null if this service does not have the call. */
export async function ifOffered(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error instanceof Problem && (error.isMissing || error.status === 405)) return null;
    throw error;
  }
}

/** Numbers as they were written, where JavaScript cannot hold them. */
export class Exact {
  constructor(text) {
    this.text = text;
  }
}

/** JSON of any depth, with numbers exactly as they were written if the browser can tell. */
export function readExactly(text) {
  try {
    return JSON.parse(text, (_, value, context) =>
      typeof value === "number" && context && context.source && !Object.is(String(value), context.source)
        ? new Exact(context.source)
        : value,
    );
  } catch (error) {
    if (error instanceof RangeError) return JSON.parse(text); // nested too deeply for this
    throw error;
  }
}
