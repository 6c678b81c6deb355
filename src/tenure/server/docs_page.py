"""The description of the API as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import quote

import msgspec

from tenure.server.route import Reply

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --dim: #777; --link: #0b62c4; }
@media (prefers-color-scheme: dark) { :root { --dim: #999; --link: #7ab8ff; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
nav a { margin-right: 1rem; }
h2 { margin: 2.5rem 0 .5rem; text-transform: capitalize; }
pre { overflow-x: auto; background: var(--soft); padding: .6rem .8rem; }
code, pre { font: 13px/1.4 ui-monospace, monospace; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .35rem 0; }
summary { cursor: pointer; padding: .45rem .8rem; display: flex; gap: .8rem; }
summary { flex-wrap: wrap; align-items: baseline; }
summary:hover, th { background: var(--soft); }
summary > b { width: 4.2rem; font: 600 13px/1.4 ui-monospace, monospace; }
summary > span { color: var(--dim); flex: 1; text-align: right; }
.GET { color: #1a7f37; } .POST { color: #0b62c4; }
.PUT { color: #9a6700; } .DELETE { color: #cf222e; }
@media (prefers-color-scheme: dark) { .GET { color: #57c77a; } .POST { color: #7ab8ff; }
  .PUT { color: #e0b040; } .DELETE { color: #ff8080; } }
details > div { padding: .2rem .8rem .8rem; overflow-x: auto; }
h4 { margin: .8rem 0 .2rem; } p { margin: .4rem 0; }
table { border-collapse: collapse; width: 100%; }
th, td { border: 1px solid var(--line); padding: .2rem .5rem; }
th, td { text-align: left; vertical-align: top; }
th { font-weight: 600; } td:first-child { white-space: nowrap; }
small { color: var(--dim); }
"""
HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
PLURALS = {"string": "texts", "integer": "whole numbers", "number": "numbers"}
SINGULARS = {"string": "text", "integer": "whole number", "boolean": "true or false"}

EXAMPLE = """\
curl http://localhost:3100/v1/jobs -H 'content-type: application/json' \\
  -H "authorization: Bearer $TENURE_TOKEN" \\
  -d '{"queue": "mail", "payload": {"to": "ann@example.com"}}'"""

Json = dict[str, Any]


def docs_page(document: Json, dialect: str | None, dialects: Sequence[str]) -> Reply:
    """Return a page that lists every operation and every type of an OpenAPI document. dialect: the
    one that it describes; None for the native API. dialects: all that are served."""
    tags: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            shown = _operation(path, method.upper(), operation, document["components"]["responses"])
            tags.setdefault(operation["tags"][0], []).append(shown)
    types = document["components"]["schemas"]
    name = "Tenure" if dialect is None else f"Tenure: {dialect}"
    # Relative, because the service may be below any path.
    path = "openapi.json" if dialect is None else f"{quote(dialect)}/openapi.json"
    parts = [
        _head(name, document["info"]["version"]),
        "<p>A durable job queue. Request bodies are JSON. If a token is needed, send it as "
        "<code>Authorization: Bearer &hellip;</code>. As an OpenAPI document: "
        f'<a href="{path}">{path}</a>.</p>',
        *([] if dialect is not None else [f"<pre>{escape(EXAMPLE)}</pre>"]),
        _elsewhere(dialect, dialects),
        f"<nav>{''.join(_link(tag, tag) for tag in [*tags, 'types'])}</nav>",
    ]
    for tag, operations_of_tag in tags.items():
        parts += [f'<h2 id="{escape(tag)}">{escape(tag)}</h2>', *operations_of_tag]
    parts += ['<h2 id="types">Types</h2>', *(_kind(*one) for one in sorted(types.items()))]
    return _page("Tenure API", parts)


def _elsewhere(dialect: str | None, dialects: Sequence[str]) -> str:
    """Links to the descriptions of the other APIs that are served."""
    links = [f'<a href="docs/{quote(one)}">{escape(one)}</a>' for one in dialects]
    if dialect is not None:
        return '<p>A dialect: the API of another queue. <a href="../docs">The native API</a>.</p>'
    if not links:
        return ""
    return f"<p>The APIs of other queues are served, too: {', '.join(links)}.</p>"


def _head(name: str, version: str) -> str:
    return f"<h1>{escape(name)} <small>{escape(version)}</small></h1>"


def _page(title: str, parts: Sequence[str]) -> Reply:
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f"<title>{escape(title)}</title><style>{STYLE}</style>"
    html = f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'
    return Reply(html.encode(), media_type="text/html; charset=utf-8", headers=HEADERS)


def _operation(path: str, method: str, operation: Json, problems: Json) -> str:
    body = [_text(operation)]
    if operation["parameters"]:
        rows = [_parameter(one) for one in operation["parameters"]]
        body.append("<h4>Parameters</h4>" + _table(("name", "in", "type"), rows))
    if "requestBody" in operation:
        sent = operation["requestBody"]
        (content,) = sent["content"].values()
        optional = "" if sent["required"] else " <small>(optional)</small>"
        body.append(f"<h4>Body</h4><p>{type_of(content['schema'])}{optional}</p>")
    rows = [_answer(status, one, problems) for status, one in operation["responses"].items()]
    body.append("<h4>Responses</h4>" + _table(("status", "body", "meaning"), rows))
    head = (
        f'<b class="{method}">{method}</b><code>{escape(path)}</code>'
        f"<span>{escape(operation['summary'])}</span>"
    )
    return _details(operation["operationId"], head, "".join(body))


def _text(described: Json) -> str:
    """The description of an operation or type as HTML. Backticks mark code."""
    parts = escape(described.get("description", "")).split("`")
    text = "".join([f"<code>{one}</code>" if n % 2 else one for n, one in enumerate(parts)])
    return f"<p>{text}</p>" if text else ""


def _parameter(parameter: Json) -> tuple[str, str, str]:
    return (
        f"<code>{escape(parameter['name'])}</code>",
        escape(parameter["in"]),
        type_of(parameter["schema"]),
    )


def _answer(status: str, response: Json, problems: Json) -> tuple[str, str, str]:
    if "$ref" in response:
        response = problems[_name(response)]
    what = [
        f"{type_of(one['schema'])} <small>{escape(media)}</small>"
        for media, one in response.get("content", {}).items()
    ]
    return f"<code>{status}</code>", "".join(what), escape(response["description"])


def _kind(name: str, schema: Json) -> str:
    """A named type: its fields, or its values."""
    body = _text(schema)
    if "properties" not in schema:
        return _details(name, f"<code>{escape(name)}</code>", f"{body}<p>{type_of(schema)}</p>")
    rows = [
        (f"<code>{escape(field)}</code>", type_of(one), _presence(field, one, schema))
        for field, one in schema["properties"].items()
    ]
    table = _table(("field", "type", ""), rows) if rows else "<p>No fields.</p>"
    return _details(name, f"<code>{escape(name)}</code>", body + table)


def _presence(field: str, schema: Json, of: Json) -> str:
    if field in of.get("required", ()):
        return "required"
    return f"<small>default {_value(schema['default'])}</small>" if "default" in schema else ""


def type_of(schema: Json) -> str:
    """A type in a few words."""
    if "$ref" in schema:
        return _link(_name(schema), _name(schema))
    if "anyOf" in schema:
        return " or ".join([type_of(one) for one in schema["anyOf"]])
    if "enum" in schema:
        return " or ".join([_value(one) for one in schema["enum"]])
    kind: str = schema.get("type", "any JSON")
    if kind == "array":
        items = schema.get("items", {})
        of = PLURALS.get(items.get("type", ""), "") or type_of(items)
        return f"list of {of}{_bounds(schema, 'Items', '')}"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"object of {type_of(values)}" if isinstance(values, dict) else "object"
    word = SINGULARS.get(kind, kind)
    return word + (_bounds(schema, "Length", " characters") or _range(schema))


def _bounds(schema: Json, of: str, unit: str) -> str:
    least, most = schema.get(f"min{of}"), schema.get(f"max{of}")
    if most is None:
        return ""
    return f" <small>({least or 0} to {most:,}{unit})</small>"


def _range(schema: Json) -> str:
    parts = [
        f"{sign} {schema[key]:,}"
        for key, sign in (
            ("minimum", "&ge;"),
            ("exclusiveMinimum", "&gt;"),
            ("maximum", "&le;"),
        )
        if key in schema
    ]
    return f" <small>({', '.join(parts)})</small>" if parts else ""


def _value(value: Any) -> str:
    return f"<code>{escape(msgspec.json.encode(value).decode())}</code>"


def _name(reference: Json) -> str:
    name: str = reference["$ref"].rpartition("/")[2]
    return name


def _link(anchor: str, text: str) -> str:
    return f'<a href="#{escape(anchor)}">{escape(text)}</a>'


def _details(anchor: str, head: str, body: str) -> str:
    """A collapsible block. The anchor is inside it, so that a link to it opens the block."""
    inside = f'<div id="{escape(anchor)}">{body}</div>'
    return f"<details><summary>{head}</summary>{inside}</details>"


def _table(heads: tuple[str, ...], rows: list[tuple[str, str, str]]) -> str:
    head = "".join([f"<th>{one}</th>" for one in heads])
    body = "".join(["<tr>" + "".join([f"<td>{one}</td>" for one in row]) + "</tr>" for row in rows])
    return f"<table><tr>{head}</tr>{body}</table>"
