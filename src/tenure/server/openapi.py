"""The OpenAPI 3.1 document, generated from the table of routes and the types of their requests and
responses."""

from __future__ import annotations

from collections.abc import Iterable
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from tenure.model.fields import MAX_NAME, Name
from tenure.server import idempotency
from tenure.server.route import ANY, Route

REF = "#/components/schemas/{name}"
JSON = "application/json"

PROBLEMS = {
    400: "The request is invalid",
    401: "The token is missing or unknown",
    403: "The token does not allow this, or a page of another site sent the request",
    404: "Something that the request names does not exist",
    408: "The request did not arrive in time",
    409: "The current state does not allow this",
    413: "The request is too large",
    415: "The Content-Type is not JSON",
    421: "The service does not accept this host name",
    429: "Too busy; try again later",
    503: "The store is away",
}
NEED_TOKEN = {401, 403}
NEED_BODY = {408, 413, 415}


class Schemas:
    """The JSON schemas of types."""

    def __init__(self, kinds: Iterable[Any]) -> None:
        kinds = list(dict.fromkeys(one for kind in kinds for one in _members(kind)))
        schemas, self.components = msgspec.json.schema_components(kinds, ref_template=REF)
        self._of = dict(zip(kinds, schemas, strict=True))

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type, which may be a union."""
        schemas = [self._of[one] for one in _members(kind)]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _members(kind: Any) -> list[Any]:
    """The members of a union. They are described one by one, because msgspec rejects unions whose
    members it could not tell apart when decoding, and responses are never decoded here."""
    return list(get_args(kind)) if get_origin(kind) in (Union, UnionType) else [kind]


def openapi(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """Return the document for /openapi.json."""
    table = [route for route in routes if route.described]
    kinds: list[Any] = [Name]
    for route in table:
        named = (route.body, route.query, route.answer, route.problem, *route.others.values())
        kinds += [kind for kind in named if kind is not None]
    schemas = Schemas(kinds)
    paths: dict[str, Any] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tenure", "version": version, "description": "A durable job queue."},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": _problems(table, schemas),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, schemas: Schemas) -> dict[str, Any]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schemas.of(Name)} for name in names
    ]
    if route.query is not None:
        parameters += _query(schemas.components[route.query.__name__])
    if route.takes_key:
        parameters.append(
            {"name": idempotency.NAME, "in": "header", "required": False,
             "description": idempotency.ABOUT, "schema": {"type": "string", "minLength": 1,
                                                          "maxLength": MAX_NAME}}
        )  # fmt: skip
    operation: dict[str, Any] = {
        "operationId": f"{route.tag}_{route.handler.__name__}",
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": parameters,
        "responses": _responses(route, schemas),
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {JSON: {"schema": schemas.of(route.body)}},
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
    """The schema without null, which a query string cannot hold."""
    kinds = [one for one in schema.get("anyOf", []) if one.get("type") != "null"]
    if len(kinds) == 1:
        return {key: value for key, value in kinds[0].items() if key != "default"}
    return {key: value for key, value in schema.items() if key != "default"}


def _responses(route: Route, schemas: Schemas) -> dict[str, Any]:
    left_out = set() if route.scope is not None else NEED_TOKEN
    left_out = left_out if route.body is not None else left_out | NEED_BODY
    responses = {
        str(status): {"$ref": f"#/components/responses/{_problem_name(route, status)}"}
        for status in PROBLEMS
        if status not in left_out
    }
    for status, kind in {route.status: route.answer, **route.others}.items():
        text = PROBLEMS.get(status, "Success" if kind else "No content")
        responses[str(status)] = _response(text, route.media_type, kind, schemas)
    return dict(sorted(responses.items()))


def _response(text: str, media_type: str, kind: Any, schemas: Schemas) -> dict[str, Any]:
    if kind is None:
        return {"description": text}
    return {"description": text, "content": {media_type: {"schema": schemas.of(kind)}}}


def _problems(routes: Iterable[Route], schemas: Schemas) -> dict[str, Any]:
    """The error responses, in the format of each API."""
    return {
        _problem_name(route, status): _response(text, route.problem_type, route.problem, schemas)
        for route in routes
        for status, text in PROBLEMS.items()
    }


def _problem_name(route: Route, status: int) -> str:
    return f"{route.problem.__name__}{status}"
