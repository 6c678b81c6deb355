"""The dialects in the description of the API."""

from __future__ import annotations

import re

from tenure.queue import store_of
from tenure.server.routes import DIALECTS
from tests.server.conftest import Client


def test_every_call_is_described(client: Client) -> None:
    for route in client.service.table.routes:
        if not route.described:
            continue
        own = f"/docs/{route.tag}/openapi.json" if route.tag in DIALECTS else "/openapi.json"
        document = client.get(own)
        operation = document["paths"][route.path][route.method.lower()]
        assert operation["tags"] == [route.tag]
        assert operation["summary"]
        names = set(re.findall(r"#/components/schemas/([^'\"]+)", str(document["paths"])))
        assert names <= set(document["components"]["schemas"])


def test_an_error_of_a_dialect_is_described_in_its_own_shape(client: Client) -> None:
    document = client.get("/docs/firecrawl/openapi.json")
    named = document["paths"]["/queue/push"]["post"]["responses"]["400"]
    assert named == {"$ref": "#/components/responses/ErrorText400"}
    bad = document["components"]["responses"]["ErrorText400"]["content"]
    assert bad == {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorText"}}}


def test_an_unexpected_error_is_told_in_the_shape_of_the_dialect(client: Client) -> None:
    def broken(wanted: object) -> None:
        raise ZeroDivisionError("secret")

    store_of(client.service.queue).do = broken  # type: ignore[method-assign]
    asked = client.ask("GET", "/queue/count/team/t")
    assert asked.status == 500
    assert list(asked.json) == ["error"]
    assert "secret" not in asked.json["error"]
