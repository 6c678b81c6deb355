"""OpenAPI 3.1, made from the table of routes and the types that decode the requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tenure.server.problems import Problem
from tenure.server.route import ANY, Route

REF = "#/components/schemas/{name}"


def openapi(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """The document that /openapi.json answers with."""
    table = [route for route in routes if route.tag]
    kinds: list[Any] = [Problem]
    for route in table:
        named = (route.body, route.query, route.answer, route.problem)
        kinds += [kind for kind in named if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    of = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, of, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tenure", "version": version, "description": "A durable job queue."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, of: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in names
    ]
    if route.query is not None:
        parameters += _query(components[route.query.__name__])
    operation: dict[str, Any] = {
        "operationId": f"{route.tag}_{route.handler.__name__}",
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": parameters,
        "responses": _responses(route, of),
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {"application/json": {"schema": of[id(route.body)]}},
        }
    if route.scope is not None:
        operation["security"] = [{"token": []}]
        if route.scope != ANY:
            operation["description"] = f"Needs the scope `{route.scope}`."
    return operation


def _query(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "required": False, "schema": _not_null(one)}
        for name, one in schema.get("properties", {}).items()
    ]


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is left out is not sent; there is no null in a query string."""
    kinds = [one for one in schema.get("anyOf", []) if one.get("type") != "null"]
    if len(kinds) == 1:
        return {key: value for key, value in kinds[0].items() if key != "default"}
    return {key: value for key, value in schema.items() if key != "default"}


def _responses(route: Route, of: dict[int, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "It is done."}
    if route.answer is not None:
        good["content"] = {route.media_type: {"schema": of[id(route.answer)]}}
    statuses = {400: "The request cannot be", 404: "Something that it names does not exist"}
    if route.scope is not None:
        statuses |= {401: "No token, or one that is not known", 403: "Not for this token"}
    statuses |= {
        408: "The request did not arrive in time",
        409: "The state does not allow it",
        413: "Too large",
        429: "Too busy, try again",
        503: "The store is away",
    }
    problem = {route.problem_type: {"schema": of[id(route.problem)]}} if route.problem else {}
    bad = {
        str(status): {"description": text, "content": problem} for status, text in statuses.items()
    }
    return {str(status): good for status in (route.status, *route.other_statuses)} | bad
