"""The description of the API is true: what is answered is as it says, whatever is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args, get_type_hints

import pytest

from tenure import features
from tenure.server.openapi import openapi
from tenure.server.route import Reply
from tenure.server.routes import DIALECTS, routes_of
from tests.server import fuzz

SEED = 4
EACH = 3  # requests of each call at the edges and at random, as each caller; `make fuzz` sends more


@pytest.mark.parametrize("who", fuzz.WHO)
@pytest.mark.parametrize("label", fuzz.LABELS)
def test_every_answer_is_as_it_is_described(label: str, who: fuzz.Who) -> None:
    statuses = fuzz.try_systematically(label, who, EACH)
    statuses += fuzz.try_at_random(label, who, EACH, SEED)
    assert statuses


def test_requests_are_about_what_is_there() -> None:
    """Or only errors would be tried."""
    for label in ("POST /v1/extend", "POST /queue/complete", "GET /jobs/{id}"):
        statuses = fuzz.try_at_random(label, "everybody", 30, SEED)
        assert statuses[200] >= 3, (label, statuses)


def test_an_answer_is_described_by_the_type_that_the_handler_returns() -> None:
    for route in routes_of(DIALECTS):
        returned = get_type_hints(route.handler)["return"]
        if returned is not Reply and route.media_type == "application/json":
            expected = route.answer | Reply if {202, 204} & route.others.keys() else route.answer
            assert returned == expected, route


def test_every_reference_of_the_description_leads_somewhere() -> None:
    document = openapi(routes_of(DIALECTS), "1")
    for reference in _references(document):
        found = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


def test_every_call_has_a_name_of_its_own() -> None:
    paths = openapi(routes_of(DIALECTS), "1")["paths"].values()
    names = [one["operationId"] for operations in paths for one in operations.values()]
    assert len(names) == len(set(names))


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            if name == "$ref":
                yield one
            else:
                yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)


def test_the_result_of_every_query_is_described() -> None:
    assert set(features.RESULTS) == set(get_args(features.AnyQuery))
