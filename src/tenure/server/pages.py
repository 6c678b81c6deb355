"""The description of the API as a page, which loads nothing from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

from tenure.server.route import Reply

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
details { border: 1px solid #8884; border-radius: 6px; margin: .4rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } code, pre { font: 13px/1.4 ui-monospace, monospace; }
pre { overflow: auto; background: #8881; padding: .6rem; border-radius: 4px; }
b { display: inline-block; min-width: 4.2rem; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } }
"""
HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}


def docs_page(document: dict[str, Any]) -> Reply:
    """Every operation, with what is sent and answered."""
    parts = [f"<h1>Tenure {escape(document['info']['version'])}</h1>"]
    parts.append("<p>The same as data: <code>/openapi.json</code></p>")
    tags: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tags.setdefault(operation["tags"][0], []).append(_operation(path, method, operation))
    for tag, shown in tags.items():
        parts += [f"<h2>{escape(tag)}</h2>", *shown]
    parts.append("<h2>Types</h2>")
    for name, schema in document["components"]["schemas"].items():
        parts.append(_details(escape(name), _json(schema)))
    title = "<title>Tenure API</title><meta charset=utf-8>"
    html = f"<!doctype html><html lang=en>{title}<style>{STYLE}</style>{''.join(parts)}</html>"
    return Reply(html.encode(), media_type="text/html; charset=utf-8", headers=HEADERS)


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    head = f"<b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation['summary'])}"
    shown = {
        key: operation[key]
        for key in ("parameters", "requestBody", "responses")
        if key in operation
    }
    return _details(head, escape(operation.get("description", "")) + _json(shown))


def _details(head: str, body: str) -> str:
    return f"<details><summary>{head}</summary>{body}</details>"


def _json(value: Any) -> str:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return f"<pre>{escape(text)}</pre>"
