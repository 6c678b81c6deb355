"""Who may do what, from the table of routes: a route that is added is tried here, or fails here.

That a token which is bound sees nothing of others is tried by comparison: whatever it asks, it is
answered as in a store in which the others have nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import tenure
from tenure import Queue, Settings, features
from tenure.server.auth import Scope, Tokens
from tenure.server.checks import NEEDS
from tenure.server.route import ANY, Route
from tenure.server.routes import DIALECTS, make_app, routes_of
from tenure.server.service import Service
from tenure.server.token_file import TokenFile, create_token
from tenure.testing import ManualClock
from tests.server.conftest import Asked, Client, Serve, token
from tests.server.examples import (
    EXAMPLES,
    OPS,
    QUERIES,
    Bound,
    Example,
    fill,
    request_of,
)
from tests.support.sizes import let

ROUTES = {repr(route): route for route in routes_of(DIALECTS)}
GUARDED = {name: route for name, route in ROUTES.items() if route.scope is not None}
FREE = {
    "GET /healthz",
    "GET /readyz",
    "GET /openapi.json",
    "GET /docs",
    "GET /docs/{dialect}",
    "GET /docs/{dialect}/openapi.json",
    "GET /",
    "GET /static/{hash}/{name}",
    "GET /health",
    "GET /ping",
}
PLAIN = {name: route for name, route in GUARDED.items() if not route.streams}
TRIED = [(name, n) for name in PLAIN for n in range(len(EXAMPLES.get(name, [])))]
BOUNDS: tuple[Bound, ...] = ("tenant", "queue")
TOKENS = [
    token("admin"),
    *(token(scope.value, scope) for scope in Scope if scope is not Scope.ADMIN),
    token("tenant", *Scope, tenants=("ours",)),
    token("queue", *Scope, queues=("ours-queue",)),
]


class World:
    """A store in which some have things, and a service over it."""

    def __init__(self, runner: asyncio.Runner, bound: Bound, owners: list[str]) -> None:
        self.bound = bound
        self.queue: Queue = tenure.connect("memory://", settings=Settings(), clock=ManualClock())
        for owner in owners:
            fill(self.queue, owner, bound)
        self.service: Service = make_app(self.queue, tokens=Tokens(TOKENS), dialects=DIALECTS)
        self.client = Client(self.service, runner)

    def ask(self, who: str | None, name: str, example: Example, owner: str = "theirs") -> Asked:
        method = ROUTES[name].method
        request = request_of(self.queue, method, example, owner, self.bound)
        return self.client.as_(who).ask(method, request.path, content=request.content)

    def close(self) -> None:
        self.service.news.close()
        self.queue.close()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=BOUNDS)
def worlds(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[tuple[World, World]]:
    """One where we are not alone, and one where we are."""
    both = World(runner, request.param, ["ours", "theirs"])
    alone = World(runner, request.param, ["ours"])
    yield both, alone
    both.close()
    alone.close()


@pytest.fixture
def world(runner: asyncio.Runner) -> Iterator[World]:
    world = World(runner, "tenant", ["ours", "theirs"])
    yield world
    world.close()


# The table ----------------------------------------------------------------------------------------


def test_what_is_free_is_known_to_be() -> None:
    assert {name for name, route in ROUTES.items() if route.scope is None} == FREE


def test_every_route_has_an_example() -> None:
    assert set(PLAIN) == set(EXAMPLES)
    assert all(EXAMPLES.values())


def test_every_operation_and_query_has_an_example() -> None:
    known = {kind.__name__ for kind in get_args(features.AnyOp)}
    assert {op["op"] for op in OPS} == known
    assert {query["query"] for query in QUERIES} == {
        kind.__name__ for kind in get_args(features.AnyQuery)
    }
    assert {kind.__name__ for kind in NEEDS} == known | {query["query"] for query in QUERIES}


@pytest.mark.parametrize(("name", "n"), TRIED)
def test_each_example_is_a_good_one(world: World, name: str, n: int) -> None:
    asked = world.ask("admin", name, EXAMPLES[name][n])
    assert 200 <= asked.status < 300, asked
    assert b'"Refused"' not in asked.content
    assert b'"ok":false' not in asked.content


# Without a token, and with a wrong one ------------------------------------------------------------


@pytest.mark.parametrize("name", GUARDED)
def test_without_a_token_nothing_is_done(world: World, name: str) -> None:
    before = things(world.queue)
    for example in EXAMPLES.get(name, [Example(ROUTES[name].path)])[:1]:
        for header in (
            None,
            "",
            "Bearer",
            "Bearer ",
            "Bearer wrong",
            "Basic admin",
            "admin",
            f"Bearer {TOKENS[0].hash}",
        ):
            method = ROUTES[name].method
            request = request_of(world.queue, method, example, "theirs", world.bound)
            headers = {} if header is None else {"authorization": header}
            asked = world.client.ask(method, request.path, content=request.content, headers=headers)
            assert asked.status == 401, (header, asked)
            assert asked.headers["www-authenticate"] == "Bearer"
            assert b"theirs" not in asked.content
    assert things(world.queue) == before


@pytest.mark.parametrize("name", sorted(FREE))
def test_what_is_free_needs_no_token(world: World, name: str) -> None:
    path = ROUTES[name].path.replace("{dialect}", "firecrawl").replace("{name}", "app.js")
    assert world.client.ask("GET", path).status == 200


def test_a_request_is_refused_before_it_is_read(world: World) -> None:
    for route in GUARDED.values():
        path = re.sub("{[^}]*}", "%FF", route.path) + "?%FF"
        assert world.client.ask(route.method, path, content=b"{").status == 401


# Scopes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", [Scope.PRODUCE, Scope.WORK, Scope.READ])
@pytest.mark.parametrize("name", GUARDED)
def test_each_scope_alone(world: World, name: str, scope: Scope) -> None:
    route = ROUTES[name]
    if route.scope == ANY or (route.streams and route.scope == scope):
        pytest.skip("it is seen operation by operation, below, or never ends")
    before = things(world.queue)
    for example in EXAMPLES.get(name, [Example(route.path)])[:1]:
        asked = world.ask(scope.value, name, example)
        if route.scope == scope:
            assert 200 <= asked.status < 300, asked
        else:
            assert asked.status == 403, asked
            assert b"needs the scope" in asked.content
            assert things(world.queue) == before


@pytest.mark.parametrize("scope", [Scope.PRODUCE, Scope.WORK, Scope.READ])
@pytest.mark.parametrize("name", ["POST /v1/ops", "POST /v1/query"])
def test_each_scope_alone_for_operations_and_queries(world: World, name: str, scope: Scope) -> None:
    needs = {kind.__name__: needed for kind, needed in NEEDS.items()}
    for example in EXAMPLES[name]:
        before = things(world.queue)
        (kind,) = kinds_of(example)
        needed = {needs[kind]}
        if "then" in str(example.body):
            needed.add(Scope.PRODUCE)
        asked = world.ask(scope.value, name, example)
        if needed == {scope}:
            assert asked.status == 200, (example, asked)
        else:
            assert asked.status == 403, (example, asked)
            assert things(world.queue) == before


def kinds_of(example: Example) -> list[str]:
    if "query" in example.body:
        return [example.body["query"]["query"]]
    return [op["op"] for op in example.body["ops"]]


def test_one_operation_that_is_not_allowed_refuses_the_batch(world: World) -> None:
    before = things(world.queue)
    for body in ({"ops": [OPS[0], {"op": "Maintain"}]}, {"ops": [OPS[0], OPS[3]]}):
        asked = world.ask("produce", "POST /v1/ops", Example("/v1/ops", body))
        assert asked.status == 403
    assert things(world.queue) == before


def test_an_operation_names_the_scope_that_it_needs(world: World) -> None:
    example = Example("/v1/ops", {"ops": [{"op": "Replay", "ids": ["OWNER-dead"]}]})
    asked = world.ask("work", "POST /v1/ops", example)
    assert asked.status == 403
    assert asked.json["detail"] == ("this token may not replay jobs: that needs the scope 'admin'")


# Bounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "n"), TRIED)
def test_others_do_not_exist_for_a_token_that_is_bound(
    worlds: tuple[World, World], name: str, n: int
) -> None:
    """It names their jobs, queues, slots and schedules, and is answered as if there were none."""
    both, alone = worlds
    before = things(both.queue, "theirs")
    answers = [
        shown(world.ask(world.bound, name, EXAMPLES[name][n]), name) for world in (both, alone)
    ]
    assert answers[0] == answers[1]
    assert things(both.queue, "theirs") == before


@pytest.mark.parametrize(("name", "n"), TRIED)
def test_what_is_ours_is_not_mixed_with_what_is_not(
    worlds: tuple[World, World], name: str, n: int
) -> None:
    """It asks about its own, and is answered as if it were alone; mostly, well."""
    both, alone = worlds
    before = things(both.queue, "theirs")
    asked = [world.ask(world.bound, name, EXAMPLES[name][n], "ours") for world in (both, alone)]
    assert shown(asked[0], name) == shown(asked[1], name)
    assert b"theirs" not in asked[0].content
    assert things(both.queue, "theirs") == before
    if refused_when_bound(both.bound, ROUTES[name], EXAMPLES[name][n]):
        assert asked[0].status == 403, asked[0]
    else:
        assert 200 <= asked[0].status < 300, asked[0]
        assert b'"Refused"' not in asked[0].content


def refused_when_bound(bound: Bound, route: Route, example: Example) -> bool:
    """What concerns everybody is not for a token that is bound."""
    if bound == "queue" and route.tag in ("firecrawl", "d1", "queuey"):
        return True  # their queues are not the token's
    name = repr(route)
    return (
        name in ("POST /v1/maintain", "GET /metrics", "GET /v1/audit")
        or name.startswith(("POST /v1/errors/", "POST /cleanup", "POST /reconcile/crawl"))
        or "/active/crawl/" in name
        or name == "POST /jobs/create"  # makes jobs of no tenant
        or (name == "POST /v1/ops" and kinds_of(example)[0] in ("Maintain", "MuteError"))
        or "FindByPrefix" in str(example.body)
        or "ListAudit" in str(example.body)
        or (bound == "tenant" and name in ("GET /v1/errors", "GET /v1/rates"))
        or (bound == "tenant" and re.search("ListErrors|ListRates", str(example.body)) is not None)
        or (bound == "tenant" and "group-totals" in name)
        or (bound == "tenant" and "ListGroupTotals" in str(example.body))
    )


def shown(asked: Asked, name: str) -> tuple[int, str]:
    """An answer without what is made up: ids, and the numbers of claims and changes."""
    text = asked.content.decode()
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r'"token":\d+', '"token":0', text)
    text = re.sub(r'"queueKey":"[^"]*"', '"queueKey":""', text)
    text = re.sub(r'"version":"[^"]*"', '"version":""', text)
    return asked.status, text


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs?if_exists=skip"])
def test_an_id_that_another_may_have_cannot_be_chosen(
    worlds: tuple[World, World], path: str
) -> None:
    """Whether it is taken or not: the answer does not tell, and nobody can take it beforehand."""
    for id in (
        *("theirs-done", "free", "theirs/1", "ours-queue/1", "ours-other/1"),
        "00000000-0000-1000-8000-000000000000",
    ):
        answers = []
        for world in worlds:
            before = things(world.queue)
            job = {"queue": "QUEUE", "tenant": "TENANT", "id": id}
            for body in (job, [job]):
                example = Example(path, body)
                answers.append(world.ask(world.bound, "POST /v1/jobs", example, "ours"))
            assert things(world.queue) == before
        assert {one.status for one in answers} == {403}
        assert len({one.json["detail"] for one in answers}) == 1
        own = "'ours/'" if worlds[0].bound == "tenant" else "'@ours-queue/'"
        assert f"an id must begin with {own}" in answers[0].json["detail"]


@pytest.mark.parametrize("id", ["OWN/1", "3f8a1c52-9d47-4b0e-8c61-5e2d7a90b1f4", None])
def test_an_id_of_our_own_or_a_random_one_can_be_chosen(
    worlds: tuple[World, World], id: str | None
) -> None:
    for world in worlds:
        own = "ours" if world.bound == "tenant" else "@ours-queue"
        job = {"queue": "QUEUE", "tenant": "TENANT"}
        job |= {} if id is None else {"id": id.replace("OWN", own)}
        asked = world.ask(world.bound, "POST /v1/jobs", Example("/v1/jobs", job), "ours")
        assert asked.status == 201, asked


def test_no_two_tenants_or_queues_have_ids_in_common() -> None:
    names = ["a", "a/b", "a%2Fb", "@a", "%40a", "", "@"]
    prefixes = [token("t", tenants=(name,)).own_ids("q", name) for name in names]
    prefixes += [token("t", queues=(name,)).own_ids(name, "t") for name in names]
    for one in prefixes:
        assert [other for other in prefixes if one.startswith(other)] == [one]


def test_an_id_of_our_own_that_another_has_is_taken(world: World) -> None:
    """Which only a token that is not bound can have brought about."""
    world.queue.enqueue("shared", id="ours/1", tenant="theirs")
    before = things(world.queue)
    for path in ("/v1/jobs", "/v1/jobs?if_exists=skip"):
        job = {"queue": "shared", "tenant": "ours", "id": "ours/1"}
        asked = world.ask("tenant", "POST /v1/jobs", Example(path, job), "ours")
        assert asked.status == 409, asked
    assert things(world.queue) == before


def test_a_schedule_of_a_bound_token_waits_for_no_job(world: World) -> None:
    spec = {"id": "-", "queue": "shared", "tenant": "ours", "payload": 1, "after": ["theirs-done"]}
    put = {"op": "PutSchedule", "schedule": {"name": "s", "cron": "* * * * *", "job": spec}}
    asked = world.ask("tenant", "POST /v1/ops", Example("/v1/ops", {"ops": [put]}), "ours")
    assert asked.status == 403, asked


def test_a_fired_job_gets_no_id_that_another_may_have(world: World) -> None:
    fire = {"op": "Fire", "name": "ours-schedule", "tick": 5, "id": "theirs/1"}
    asked = world.ask("tenant", "POST /v1/ops", Example("/v1/ops", {"ops": [fire]}), "ours")
    assert asked.status == 403, asked


def test_a_client_can_narrow_an_operation_but_not_widen_it(world: World) -> None:
    grants: list[tuple[dict[str, list[str]], str]] = [
        ({"tenants": ["theirs"]}, "pending"),
        ({"tenants": []}, "pending"),
        ({"queues": ["none"]}, "pending"),
        ({}, "cancelled"),
    ]
    for grant, state in grants:
        cancel = {"op": "Cancel", "ids": ["ours-ready", "theirs-ready"], "grant": grant}
        example = Example("/v1/ops", {"ops": [cancel]})
        assert world.ask("tenant", "POST /v1/ops", example, "ours").status == 200
        assert world.queue.get("ours-ready").state == state
        assert world.queue.get("theirs-ready").state == "pending"


def test_the_answers_of_another_token_are_not_told(world: World) -> None:
    claim = {"op": "Claim", "queues": ["shared"], "worker": "w", "lease_ms": 9, "tenant": "ours"}
    example = Example("/v1/ops", {"ops": [claim], "key": "k"})
    first = world.ask("admin", "POST /v1/ops", example).json
    assert [job["id"] for job in first["answers"][0]["jobs"]] == ["ours-ready"]
    assert world.ask("admin", "POST /v1/ops", example).json == first
    assert world.ask("work", "POST /v1/ops", example).json["answers"][0]["jobs"] == []


def test_operations_of_a_bound_token_are_applied_once(worlds: tuple[World, World]) -> None:
    """Also when what they are about is gone when they are sent again."""
    both, _ = worlds
    lease = {"id": "OWNER-leased", "token": "TOKEN"}
    batch: list[Any] = [
        {"op": "Ack", **lease, "keep": False},
        {"op": "Delete", "ids": ["OWNER-done", "theirs-done", "never"]},
        {"op": "Cancel", "ids": ["theirs-ready"]},
        {"op": "Ack", "id": "theirs-leased", "token": 1},
        {"op": "DropSchedule", "name": "OWNER-schedule"},
    ]
    example = Example("/v1/ops", {"ops": batch, "key": "k"})
    request = request_of(both.queue, "POST", example, "ours", both.bound)
    client = both.client.as_(both.bound)
    first = client.post("/v1/ops", content=request.content)["answers"]
    assert [one["answer"] for one in first] == ["Ok", "Changed", "Changed", "Refused", "Ok"]
    assert first[1] == {
        "answer": "Changed",
        "count": 1,
        "missing": ["theirs-done", "never"],
        "refused": {},
    }
    assert first[2]["missing"] == ["theirs-ready"]
    assert first[3]["code"] == "job_not_found"
    assert client.post("/v1/ops", content=request.content)["answers"] == first


def test_a_token_of_several_tenants_says_which(runner: asyncio.Runner) -> None:
    world = World(runner, "tenant", ["ours", "theirs", "also"])
    two = token("two", *Scope, tenants=("ours", "also"))
    service = make_app(world.queue, tokens=Tokens([two]), dialects=DIALECTS)
    client = Client(service, runner, "two")
    try:
        assert client.ask("POST", "/v1/claim", {"queues": ["shared"]}).status == 403
        body = {"queues": ["shared"], "tenant": "also"}
        assert client.post("/v1/claim", body)["jobs"][0]["id"] == "also-ready"
        assert client.get("/queue/count/team/also") == {"count": 3}
        assert client.get("/sample/teams") == {"ids": ["also", "ours"]}
        assert client.get("/v1/queues/shared")["dead"] == 2
        tenants = client.get("/v1/queues/shared/tenants")
        assert [one["tenant"] for one in tenants] == ["also", "ours"]
        assert client.get("/jobs/stats")["stats"]["failed"] == 2
    finally:
        service.news.close()
        world.close()


def things(queue: Queue, owner: str = "") -> list[Any]:
    """All that there is, or all of an owner."""
    jobs = [job for job in queue.jobs(limit=1000).jobs if owner in job.id]
    slots = [
        (scope, key, queue.slots.list(scope, key))
        for who in ("ours", "theirs")
        if owner in who
        for scope in ("shared", f"{who}-queue", "firecrawl/team", "firecrawl/crawl")
        for key in (who, f"{who}-group")
    ]
    schedules = [one for one in queue.schedules.list() if owner in one.name]
    limits = [one for one in queue.limits.list() if owner in f"{one.queue} {one.tenant}"]
    return [jobs, slots, schedules, limits]


def test_a_token_is_known_as_soon_as_it_was_created(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    create_token(path, "first", ["read"])
    tokens = TokenFile(path, [], lambda: 0.0)  # time stands still
    secret = create_token(path, "second", ["read"])
    assert tokens.who(f"Bearer {secret}").name == "second"


def test_a_bound_token_has_few_schedules(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """All schedules are read together, by everybody."""
    let(monkeypatch, schedules_of_a_bound_token=2)
    client = serve(tokens=[token("t", Scope.ADMIN, tenants=("acme",)), token("a", Scope.ADMIN)])
    body = {"cron": "0 0 * * *", "job": {"queue": "q", "tenant": "acme"}}
    asked = [client.as_("t").ask("PUT", f"/v1/schedules/{n}", body).status for n in (1, 2, 2, 3)]
    assert asked == [200, 200, 200, 403]
    assert client.as_("a").ask("PUT", "/v1/schedules/3", body).status == 200


def test_the_payload_of_a_schedule_is_small(serve: Serve) -> None:
    body = {"cron": "0 0 * * *", "job": {"queue": "q", "payload": "x" * 70_000}}
    asked = serve().ask("PUT", "/v1/schedules/s", body)
    assert (asked.status, asked.json["code"]) == (413, "payload_too_large")
