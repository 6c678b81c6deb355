"""The responses that callers got must agree with what the service reports afterwards."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import httpx

import tenure
from tenure.model.job import FINAL, State
from tests.crash.checks import Evidence
from tests.crash.kill import everything
from tests.crash.service_callers import TEAMS


def what_is_refused_the_second_time_was_done_the_first(seen: Evidence) -> Iterator[str]:
    for event in seen.events["refused again"]:
        (claim,) = (one for one in seen.claims[event.id] if one.token == event.token)
        if event.at >= seen.runs_until(claim) or not seen.tried((event.id, event.token), "try ack"):
            continue
        job = seen.jobs.get(event.id)
        if job is not None and (job.state, job.token) != (State.DONE, event.token):
            yield f"{event.id} was refused as {event.data} after a lost answer, but is {job}"


def every_lease_is_somebodys(seen: Evidence) -> Iterator[str]:
    """Every lease belongs to a caller that got it, or whose claim got no response."""
    asked = {event.id for event in seen.events["try claim"]}
    for job in seen.jobs.values():
        if job.state is State.LEASED and job.worker not in asked:
            yield f"nobody asked for the lease of {job}"


def marks_are_as_they_were_told(seen: Evidence, active: dict[str, set[str]]) -> Iterator[str]:
    """A mark that nobody tried to remove exists; one that was set once and removed does not."""
    told: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for kind in ("try mark", "marked", "try unmark", "unmarked"):
        for event in seen.events[kind]:
            told[event.data["team"], event.id][kind] += 1
    for (team, id), kinds in told.items():
        if kinds["marked"] and not kinds["try unmark"] and id not in active[team]:
            yield f"{id} of {team} was marked as active, and is not"
        if kinds["try mark"] == kinds["unmarked"] == 1 and id in active[team]:
            yield f"the mark of {id} of {team} was removed, and is there"
    for team, ids in active.items():
        yield from (
            f"nobody said that {id} of {team} is active" for id in ids if not told[team, id]
        )


def counts_agree(url: str, jobs: dict[str, tenure.Job], stats: tenure.Stats) -> Iterator[str]:
    """Counts and lists agree, in each API."""
    listed: dict[str, Counter[str]] = defaultdict(Counter)
    for job in jobs.values():
        listed[job.queue][job.state] += 1
    for name, queue in stats.queues.items():
        counted = {
            "waiting": queue.waiting,
            "pending": queue.ready + queue.delayed,
            "leased": queue.leased,
            "done": queue.done,
            "dead": queue.dead,
            "cancelled": queue.cancelled,
        }
        if counted != {state: listed[name][state] for state in counted}:
            yield f"{name} counts {counted}, and lists {dict(listed[name])}"
    with httpx.Client(base_url=url) as client:
        for team in TEAMS:
            ours = {
                job.id
                for job in jobs.values()
                if (job.queue, job.tenant) == ("firecrawl", team) and job.state not in FINAL
            }
            count = client.get(f"/queue/count/team/{team}").json()["count"]
            ids = client.get(f"/queue/jobs/team/{team}?limit=100000").json()["jobIds"]
            if (count, set(ids)) != (len(ours), ours) or len(ids) != count:
                yield f"{team} counts {count}, lists {len(ids)}, and has {len(ours)} jobs"


def active_of(url: str) -> dict[str, set[str]]:
    """The ids of the active jobs, by team. Checks their number against the count."""
    active = {}
    with httpx.Client(base_url=url) as client:
        for team in TEAMS:
            ids = client.get(f"/active/jobs/{team}").json()["jobIds"]
            count = client.get(f"/active/count/{team}").json()["count"]
            assert len(ids) == len(set(ids)) == count, f"{team}: {count} are counted of {ids}"
            active[team] = set(ids)
    return active


def asked_of(url: str) -> tuple[dict[str, tenure.Job], tenure.Stats]:
    """Every job and every count, from the service itself."""
    with tenure.connect(url) as queue:
        return everything(queue), queue.stats()
