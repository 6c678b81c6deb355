"""What the journals and the store must agree on, with one function for each promise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import tenure
from tenure.model.job import FINAL, State
from tests.crash.journal import Event
from tests.crash.workload import IN_GROUP, IN_QUEUE, IN_TENANT, PER_SECONDS, RATE

Lease = tuple[str, int]  # a job's id and the token of a claim
ENDS = ("try ack", "try fail", "try release")  # these end a lease if they succeed


class Evidence:
    """The journals, sorted by subject, and every job in the store."""

    def __init__(
        self, events: Iterable[Event], jobs: dict[str, tenure.Job], *, whole: bool = True
    ) -> None:
        """whole: whole queues are limited, too."""
        self.jobs = jobs
        self.whole = whole
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.by_lease: dict[Lease, list[Event]] = defaultdict(list)
        for event in events:
            self.events[event.kind].append(event)
            if event.token:
                self.by_lease[event.id, event.token].append(event)
        self.claims: dict[str, list[Event]] = {}
        for claim in sorted(self.events["claimed"], key=lambda event: event.token):
            self.claims.setdefault(claim.id, []).append(claim)
        self.cancels: dict[str, int] = {}  # time of the first attempt
        for event in self.events["try cancel"]:
            self.cancels[event.id] = min(event.at, self.cancels.get(event.id, event.at))
        self.may_be_removed = {
            event.id for event in self.events["try ack"] if not event.data.get("keep", True)
        }

    def exists(self, id: str) -> bool:
        """Whether the job exists, or existed and may have been removed by an ack."""
        return id in self.jobs or id in self.may_be_removed

    def tried(self, lease: Lease, *kinds: str) -> list[Event]:
        return [event for event in self.by_lease[lease] if event.kind in kinds]

    def runs_until(self, claim: Event) -> int:
        """A time until which the lease was certainly valid, if nobody ended it."""
        until: list[int] = [claim.data["until"]]
        until += [event.data["until"] for event in self.tried(_lease(claim), "extended")]
        return max(until)

    def held_until(self, claim: Event) -> int:
        """A time until which the job was certainly leased."""
        ends = [event.at for event in self.tried(_lease(claim), *ENDS)]
        return min([self.runs_until(claim), *ends, self.cancels.get(claim.id, 2**63)])


def _lease(event: Event) -> Lease:
    return event.id, event.token


def nobody_met_an_error(seen: Evidence) -> Iterator[str]:
    for event in seen.events["error"]:
        yield event.data["text"]


def no_answered_job_is_lost(seen: Evidence) -> Iterator[str]:
    for event in seen.events["enqueued"] + seen.events["skipped"]:
        if not seen.exists(event.id):
            yield f"{event.id} was answered at {event.at}, and is gone"


def nothing_comes_from_nowhere(seen: Evidence) -> Iterator[str]:
    wanted = {event.id for event in seen.events["try enqueue"]}
    wanted |= {id for event in seen.events["try enqueue many"] for id in event.data["ids"]}
    wanted |= {event.data.get("then", "") for event in seen.events["try ack"]}
    for id in seen.jobs.keys() - wanted:
        yield f"{id} was enqueued by nobody"


def a_call_is_all_or_nothing(seen: Evidence) -> Iterator[str]:
    for event in seen.events["try enqueue many"]:
        there = [id for id in event.data["ids"] if seen.exists(id)]
        if there and there != event.data["ids"]:
            yield f"of {event.data['ids']} only {there} are there"
    for event in seen.events["try ack"]:
        then, job = event.data.get("then"), seen.jobs.get(event.id)
        if then is not None:
            done = job is not None and job.state == "done" and job.token == event.token
            if done != seen.exists(then):
                yield f"{event.id} is {job and job.state}, but {then} is there: {not done}"


def what_was_finished_stays_finished(seen: Evidence) -> Iterator[str]:
    for id, claims in seen.claims.items():
        acks = [e for claim in claims for e in seen.tried(_lease(claim), "acked", "removed")]
        if len(acks) > 1:
            yield f"{id} was acknowledged {len(acks)} times: {acks}"
        job = seen.jobs.get(id)
        for ack in acks:
            if ack.kind == "acked" and (
                job is None or (job.state, job.token) != ("done", ack.token)
            ):
                yield f"{id} was acknowledged under {ack.token}, but is {job}"
            if ack.kind == "removed" and job is not None:
                yield f"{id} was removed, but is {job}"
    for event in seen.events["failed"]:
        if event.data["state"] == "dead":
            yield from _must_be(seen, event, State.DEAD)
    for event in seen.events["cancelled"]:
        yield from _must_be(seen, event, State.CANCELLED)


def _must_be(seen: Evidence, event: Event, state: State) -> Iterator[str]:
    job = seen.jobs.get(event.id)
    if job is None or job.state != state:
        yield f"{event.id} was {event.kind}, but is {job}"
    late = [claim for claim in seen.claims.get(event.id, []) if claim.data["since"] > event.at]
    if late:
        yield f"{event.id} was {event.kind}, and then claimed: {late}"


def one_lease_at_a_time(seen: Evidence) -> Iterator[str]:
    for id, claims in seen.claims.items():
        for first, second in pairwise(claims):
            if first.token == second.token:
                yield f"{id} was claimed twice under one token: {first}, {second}"
            if second.data["since"] < seen.held_until(first):
                yield f"{id} was claimed while it was leased: {first}, {second}"
            if seen.tried(_lease(first), "acked", "removed"):
                yield f"{id} was claimed after it was acknowledged: {first}, {second}"


def a_lease_is_not_lost_before_its_time(seen: Evidence) -> Iterator[str]:
    for event in seen.events["refused"]:
        for claim in seen.claims.get(event.id, []):
            kept = claim.token == event.token and event.at < seen.runs_until(claim)
            if kept and event.id not in seen.cancels:
                yield f"{event.id} was refused as {event.data} while its lease ran: {claim}"


def attempts_are_within_bounds(seen: Evidence) -> Iterator[str]:
    for claim in seen.events["claimed"]:
        if not 1 <= claim.data["attempts"] <= claim.data["max_attempts"]:
            yield f"{claim.id} was given out too often: {claim}"
    for job in seen.jobs.values():
        if job.attempts > job.max_attempts:
            yield f"{job.id} has {job.attempts} attempts of {job.max_attempts}"


def limits_hold(seen: Evidence) -> Iterator[str]:
    bounds: tuple[tuple[Callable[[Any], Any], int], ...] = (
        (lambda scope: (), IN_QUEUE),
        (lambda scope: scope[1], IN_TENANT),
        (lambda scope: (scope[1], scope[2]) if scope[2] else None, IN_GROUP),
    )
    bounded = [e for e in seen.events["claimed"] if e.data["scope"][0] == "bounded"]
    for scope_of, bound in bounds if seen.whole else bounds[1:]:
        steps: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for claim in bounded:
            scope = scope_of(claim.data["scope"])
            since, until = claim.data["since"], seen.held_until(claim)
            if scope is not None and since < until:
                steps[scope] += [(since, 1), (until, -1)]
        for scope, moves in steps.items():
            count = 0
            for at, step in sorted(moves):  # at the same time, ends come before starts
                count += step
                if count > bound:
                    yield f"{count} of {scope} were leased at {at}, with a limit of {bound}"


def the_rate_holds(seen: Evidence) -> Iterator[str]:
    """Between any two claims, at most a full bucket plus what was refilled meanwhile."""
    claims = seen.events["claimed"] if seen.whole else []
    times = sorted(e.data["since"] for e in claims if e.data["scope"][0] == "rated")
    lowest = float("inf")
    for n, at in enumerate(times):
        dripped = at * RATE / (PER_SECONDS * 1000)
        lowest = min(lowest, n - dripped)
        if n + 1 - dripped - lowest > RATE + 1e-3:
            yield f"more than {RATE} a second were claimed of 'rated' up to {at}"


def children_come_after_their_parents(seen: Evidence) -> Iterator[str]:
    for id, claims in seen.claims.items():
        job = seen.jobs.get(id)
        for parent in [] if job is None else job.after:
            assert job is not None
            found = seen.jobs.get(parent)
            if found is None:
                if parent not in seen.may_be_removed:
                    yield f"{id} waits for {parent}, which is gone"
                continue
            ends = FINAL if job.if_parent_fails == "run" else {State.DONE}
            first = min(claim.data["since"] for claim in claims)
            if found.state not in ends or found.finished_at is None or found.finished_at > first:
                yield f"{id} ({job.if_parent_fails}) was claimed at {first} before {found}"


PROMISES: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    nobody_met_an_error,
    no_answered_job_is_lost,
    nothing_comes_from_nowhere,
    a_call_is_all_or_nothing,
    what_was_finished_stays_finished,
    one_lease_at_a_time,
    a_lease_is_not_lost_before_its_time,
    attempts_are_within_bounds,
    limits_hold,
    the_rate_holds,
    children_come_after_their_parents,
)


def broken(seen: Evidence) -> list[str]:
    """Every promise that was broken."""
    return [f"{promise.__name__}: {text}" for promise in PROMISES for text in promise(seen)]


def stuck(jobs: dict[str, tenure.Job]) -> list[str]:
    """Jobs that have not finished although everything that could run has."""
    return [
        f"{job.id} is stuck: {job}"
        for job in jobs.values()
        if job.state not in FINAL and not (job.state == "waiting" and _waits(job, jobs))
    ]


def _waits(job: tenure.Job, jobs: dict[str, tenure.Job]) -> bool:
    """Whether a parent keeps it from running, because it waits itself or has failed."""
    failed = ("dead", "cancelled") if job.if_parent_fails == "wait" else ()
    return any(id in jobs and jobs[id].state in ("waiting", *failed) for id in job.after)
