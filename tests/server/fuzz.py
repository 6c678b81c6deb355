"""Requests that Schemathesis makes from the description of the API, good and bad, about things that
are there.

    python -m tests.server.fuzz --seconds 600 --seed 7

Every request meets a store of its own that holds some of everything, so that one seed always finds
the same. What is answered must be as it is described, and what was refused must have left nothing.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from base64 import urlsafe_b64encode
from collections import Counter
from contextlib import closing
from functools import cache
from itertools import islice
from typing import Any, Literal
from urllib.parse import quote

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

import tenure
from tenure.server.auth import Scope, Tokens
from tenure.server.openapi import openapi
from tenure.server.routes import DIALECTS, make_app, routes_of
from tenure.server.service import Service
from tenure.testing import ManualClock
from tests.server.conftest import all_jobs, token
from tests.server.examples import fill

Who = Literal["everybody", "bounded"]
WHO: tuple[Who, ...] = ("everybody", "bounded")
SECRET = "ours"
HIT = 0.7
AMONG = (
    100  # of so many requests at the edges one is sent, if few are wanted; some calls have 4,000
)

STATES = ("done", "dead", "cancelled", "leased", "delayed", "ready")
STARTS = {"native": "", "firecrawl": "fc-", "d1": "d1-", "queuey": "mesh-"}
IDS = [
    f"{start}{owner}-{state}"
    for start in STARTS.values()
    for owner in ("ours", "theirs")
    for state in STATES
]
LEASED = [id for id in IDS if id.endswith("leased")]
QUEUES = ["shared", "firecrawl", "d1", "queuey"]
OWNERS = ["ours", "theirs"]
GROUPS = ["ours-group", "theirs-group"]
SCOPES = ["shared", "firecrawl/team", "firecrawl/crawl"]
# What is there under the names that fields, parameters and parts of paths have.
THERE: dict[str, list[Any]] = {
    "dialect": list(DIALECTS),
    "id": IDS,
    "ids": IDS,
    "after": IDS,
    "queue": QUEUES,
    "queues": QUEUES,
    "tenant": OWNERS,
    "group": GROUPS,
    "unique_key": ["ours-key", "fc-ours-key"],
    "name": ["ours-schedule", "theirs-schedule"],
    "scope": SCOPES,
    "key": OWNERS,
    "holder": ["ours-holder", "theirs-holder"],
    "token": [1, 2],
    "cron": ["0 3 * * *", "@daily"],
    "team_id": OWNERS,
    "crawl_id": GROUPS,
    "run_id": GROUPS,
    "teamId": OWNERS,
    "crawlId": GROUPS,
    "blockedCrawlIds": GROUPS,
    "runId": GROUPS,
    "tenantId": OWNERS,
    "jobId": IDS,
}


class World:
    """A service over a store with some of everything, asked as somebody."""

    def __init__(self, who: Who) -> None:
        self.queue = tenure.connect("memory://", clock=ManualClock())
        for owner in OWNERS:
            fill(self.queue, owner, "tenant")
        ours = token(SECRET, *Scope, tenants=("ours",), queues=tuple(QUEUES))
        known = [ours] if who == "bounded" else []
        self.service = make_app(self.queue, tokens=Tokens(known), dialects=DIALECTS)
        self.service.closing.set()  # nobody waits
        self.headers = {"authorization": f"Bearer {SECRET}"} if known else {}
        self._before = self.dump()

    def dump(self) -> list[Any]:
        """All that is stored."""
        slots = [self.queue.slots.list(scope, key) for scope in SCOPES for key in OWNERS + GROUPS]
        queue = self.queue
        return [all_jobs(queue), queue.stats(), queue.limits.list(), queue.schedules.list(), slots]

    def has_changed(self) -> bool:
        return self.dump() != self._before

    def close(self) -> None:
        self.service.close()
        self.queue.close()


class Asker:
    """Sends requests as somebody, each to a world in which nothing happened before."""

    def __init__(self, who: Who) -> None:
        self.who = who
        self.statuses: Counter[int] = Counter()
        self._world: World | None = None

    def ask(self, case: Case[Any]) -> None:
        """Send a request, and hold the answer to its description."""
        world = self._world or World(self.who)
        self._world = None
        front.service = world.service
        response = case.call(app=front, base_url="http://tenure", headers=world.headers)
        self.statuses[response.status_code] += 1
        if response.status_code >= 400 or case.method == "GET":
            assert not world.has_changed(), f"refused and done: {case} {response.text}"
            self._world = world  # nothing happened in it
        else:
            world.close()
        case.validate_response(response, excluded_checks=not_checked(response.status_code))

    def close(self) -> None:
        if self._world is not None:
            self._world.close()


class Front:
    """What Schemathesis asks: it keeps every application that it asks once."""

    service: Service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"  # there is nothing to start
        await self.service(scope, receive, send)


front = Front()


# A description says too little to know that a request that fits it must succeed. And a path may be
# that of several routes (GET /v1/jobs/cancel asks for the job "cancel").
NOT_CHECKED = ["positive_data_acceptance", "allow_header_conformance"]


@cache
def not_checked(status: int) -> list[Any]:
    load_all_checks()
    # A list of more than 10,000 operations may also be too large a body: that rejects it, too.
    return CHECKS.get_by_names([*NOT_CHECKED, *(["negative_data_rejection"] * (status == 413))])


@cache
def schema() -> Any:
    """The description, as Schemathesis reads it."""
    document = openapi(routes_of(DIALECTS), "test")
    for operations in document["paths"].values():
        for operation in operations.values():
            operation.pop("security", None)  # another test tries every route without a token
    return schemathesis.openapi.from_dict(document)


LABELS = [repr(route) for route in routes_of(DIALECTS) if route.described]


def operation_of(label: str) -> Any:
    method, _, path = label.partition(" ")
    return schema()[path][method]


def try_systematically(label: str, who: Who, most: int = sys.maxsize) -> Counter[int]:
    """Ask at the edges of what is described, always the same, at most so many times; answers with
    how often there was each status."""
    generation = schema().config.generation
    made = schema().iter_coverage_cases(
        operation_of(label), generation_modes=list(GenerationMode), generation_config=generation
    )
    cases = list(islice(made, min(most * AMONG, sys.maxsize)))
    with closing(Asker(who)) as asker:
        for case in cases[:: -(-len(cases) // most)]:
            asker.ask(case)
    return asker.statuses


def try_at_random(label: str, who: Who, examples: int, start: int) -> Counter[int]:
    """Ask at random; answers with how often there was each status."""
    operation = operation_of(label)
    good = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    bad = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    strategy = st.builds(aimed, good, st.randoms(use_true_random=False)) | bad

    @seed(start)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def asked(case: Case[Any]) -> None:
        asker.ask(case)

    with closing(Asker(who)) as asker:
        asked()
    return asker.statuses


def aimed(case: Case[Any], chance: random.Random) -> Case[Any]:
    """The request, about things that are there for the most part."""
    aim = Aim(chance, STARTS.get(case.operation.tags[0], ""))
    for name in case.path_parameters:
        if chance.random() < HIT:
            case.path_parameters[name] = quote(chance.choice(aim.there(name)), safe="")
    if case.query:
        case.query = aim.at(case.query)
    if isinstance(case.body, dict | list):
        case.body = aim.at(case.body)
    return case


class Aim:
    """Puts what is there into values, mostly of the jobs that a dialect knows."""

    def __init__(self, chance: random.Random, start: str) -> None:
        self._chance = chance
        own = chance.random() < HIT
        self._ids = [id for id in IDS if id.startswith(f"{start}ours")] if own else IDS

    def there(self, name: str) -> list[Any]:
        """What is there under a name."""
        return self._ids if THERE.get(name) is IDS else THERE.get(name, [])

    def at(self, value: Any) -> Any:
        """The same value, with some of what is there in it."""
        if isinstance(value, list):
            return [self.at(one) for one in value]
        if not isinstance(value, dict):
            return value
        if self._chance.random() < HIT:
            (id,) = [id for id in self._ids if id in LEASED][:1]
            if "token" in value and "id" in value:
                return value | {"id": id, "token": tokens()[id]}
            if "queueKey" in value:
                return value | {"queueKey": key_of(id)}
        return {name: self._field(name, one) for name, one in value.items()}

    def _field(self, name: str, value: Any) -> Any:
        known = self.there(name)
        if known and value is not None and self._chance.random() < HIT:
            if isinstance(value, list):
                return self._chance.sample(known, min(len(value), len(known)))
            return self._chance.choice(known)
        return self.at(value)


def key_of(id: str) -> str:
    """The claim of a job as Firecrawl writes it."""
    return urlsafe_b64encode(f"{tokens()[id]}.{id}".encode()).decode()


@cache
def tokens() -> dict[str, int]:
    """The tokens of the jobs that are leased in every store."""
    world = World("everybody")
    found = {id: world.queue.get(id).token for id in LEASED}
    world.close()
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.server.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--examples", type=int, default=100, help="of each call in each round")
    parser.add_argument("--only", default="", help="calls that have this text")
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    total: Counter[int] = Counter()
    start = options.seed
    while time.monotonic() < end:
        for label in [label for label in LABELS if options.only in label]:
            for who in WHO:
                say(f"{label} as {who}, seed {start}")
                if start == options.seed:
                    total += try_systematically(label, who)
                total += try_at_random(label, who, options.examples, start)
            if time.monotonic() > end:
                break
        say(f"answers so far: {dict(sorted(total.items()))}")
        start += 1
    return 0


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
