"""What the jobs and those who ran them must agree on, with one function for each promise."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import tenure
from tenure.model.job import FINAL, State
from tests.crash.journal import Event
from tests.workers import errands

KILLERS = (errands.kill_the_worker.name, errands.kill_the_worker_from_a_thread.name)
ALWAYS_DEAD = (*KILLERS, errands.fail.name)
LEASE_RAN_OUT = "the lease ran out"


class Span(NamedTuple):
    """A span of time, in milliseconds."""

    since: int
    until: int


class Story:
    """What was observed during a round."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self.made: set[str] = set()  # ids of jobs whose enqueue returned
        self.killed: set[str] = set()  # names of workers
        self.slept: set[str] = set()
        # When the store was locked by a worker that was put to sleep, so that nobody could commit.
        self.locked: list[Span] = []
        self.wrong: list[str] = []
        self._ended: dict[str, tuple[State, int, int | None]] = {}
        self._tokens: dict[str, int] = {}

    def look(self, queue: tenure.Queue) -> None:
        """Check that tokens grow, and that finished jobs do not change."""
        for job in queue.jobs(limit=200).jobs:
            if job.token < self._tokens.get(job.id, 0):
                self.wrong.append(f"the token of {job.id} was {self._tokens[job.id]}: {job}")
            self._tokens[job.id] = job.token
            end = (job.state, job.token, job.finished_at)
            if self._ended.get(job.id, end) != end:
                self.wrong.append(f"{job.id} had ended as {self._ended[job.id]}: {job}")
            if job.state in FINAL:
                self._ended[job.id] = end

    def nothing_is_left_by(self, names: set[str], queue: tenure.Queue, events: list[Event]) -> None:
        """Check the jobs of workers that were stopped gracefully."""
        names = names - self.killed
        for job in queue.jobs(state="leased", limit=10_000).jobs:
            if job.worker in names:
                self.wrong.append(f"{job.id} is still leased by one that has stopped: {job}")
        did = {(event.id, event.token) for event in events if event.kind == "did"}
        for event in events:
            ours = event.kind == "began" and event.data["worker"] in names - self.slept
            if ours and (event.id, event.token) not in did:
                self._is_whole(queue.get(event.id), event)

    def _is_whole(self, job: tenure.Job, event: Event) -> None:
        """Check that a released job has its attempt back, unless it was claimed again since."""
        attempt = event.data["attempt"]
        whole = (job.state, job.attempts) == ("pending", attempt - 1)
        if job.token == event.token and not whole and not self._could_not_be_released(job):
            self.wrong.append(f"attempt {attempt} of {job.id} was not given back: {job}")

    def _could_not_be_released(self, job: tenure.Job) -> bool:
        """Whether the last lease of a job ran out, and the store was locked before it did."""
        if not job.errors or not job.errors[-1].message.startswith(LEASE_RAN_OUT):
            return False
        over = job.errors[-1].at
        return any(
            span.since <= over and span.until >= over - self._lease_ms for span in self.locked
        )


class Evidence:
    """The journals, sorted by subject, and every job."""

    def __init__(self, jobs: dict[str, tenure.Job], events: Iterable[Event]) -> None:
        self.jobs = jobs
        self.events: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            self.events[event.kind].append(event)
        self.effects = Counter(event.id for event in self.events["did"])


def every_job_has_ended(seen: Evidence) -> Iterator[str]:
    for job in seen.jobs.values():
        if job.state not in FINAL or job.finished_at is None:
            yield f"{job.id} has not ended: {job}"


def jobs_end_as_they_should(seen: Evidence) -> Iterator[str]:
    for job in seen.jobs.values():
        wanted = State.DEAD if job.kind in ALWAYS_DEAD else State.DONE
        if job.state != wanted:
            yield f"{job.id} should be {wanted}: {job}"


def what_is_done_was_done(seen: Evidence) -> Iterator[str]:
    """At least once, and under the lease that the store knows."""
    did = {(event.id, event.token) for event in seen.events["did"]}
    for job in seen.jobs.values():
        if job.state == "done" and (job.id, job.token) not in did:
            yield f"{job.id} is done, but nobody did it under token {job.token}: {job}"


def a_lease_is_worked_on_once(seen: Evidence) -> Iterator[str]:
    for kind in ("began", "did"):
        leases = Counter((event.id, event.token) for event in seen.events[kind])
        for (id, token), n in leases.items():
            if n > 1:
                yield f"{id} {kind} {n} times under token {token}"


def attempts_are_within_bounds(seen: Evidence) -> Iterator[str]:
    for job in seen.jobs.values():
        if not 1 <= job.attempts <= job.max_attempts:
            yield f"{job.id} has {job.attempts} attempts of {job.max_attempts}"
    for event in seen.events["began"] + seen.events["did"]:
        job = seen.jobs[event.id]
        if not 1 <= event.data["attempt"] <= job.max_attempts:
            yield f"{event.id} was run as attempt {event.data['attempt']} of {job.max_attempts}"
        if event.token > job.token:
            yield f"{event.id} was run under token {event.token}, but had only {job.token}"


def a_job_that_kills_its_worker_ends_in_the_dead_letters(seen: Evidence) -> Iterator[str]:
    for job in seen.jobs.values():
        if job.kind in KILLERS:
            if job.attempts != job.max_attempts:
                yield f"{job.id} kills its workers, and had {job.attempts} attempts: {job}"
            if seen.effects[job.id] > job.max_attempts:
                yield f"{job.id} killed {seen.effects[job.id]} workers: {job}"


PROMISES: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    every_job_has_ended,
    jobs_end_as_they_should,
    what_is_done_was_done,
    a_lease_is_worked_on_once,
    attempts_are_within_bounds,
    a_job_that_kills_its_worker_ends_in_the_dead_letters,
)


def broken(jobs: dict[str, tenure.Job], events: Iterable[Event]) -> list[str]:
    """Every promise that was broken."""
    seen = Evidence(jobs, events)
    return [f"{promise.__name__}: {text}" for promise in PROMISES for text in promise(seen)]
