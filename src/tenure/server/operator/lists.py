"""Lists of jobs."""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.model.fields import Label, Moment, validated
from tenure.model.queries import Filter, Page, Summaries
from tenure.server.auth import Scope
from tenure.server.bodies import JobsQuery
from tenure.server.route import Call, Route


class ListQuery(JobsQuery):
    """Selects jobs. Times are in milliseconds since 1970. With `summary`, jobs come without
    payload, result and tracebacks."""

    worker: Label | None = None
    error: Label | None = None
    created_after: Moment | None = None
    created_before: Moment | None = None
    finished_after: Moment | None = None
    finished_before: Moment | None = None
    summary: bool = False


async def list_jobs(call: Call, query: ListQuery) -> Page | Summaries:
    """List jobs, newest first. With a final state, the most recently finished come first. At most
    10,000 jobs are looked at for a page of summaries: `scanned_to` says how far back it goes, and
    `cursor` continues there."""
    where = filter_of(msgspec.structs.asdict(query))
    if query.summary:
        return await call.queue._asummaries_of(where, query.limit, query.cursor)
    return await call.queue._ajobs_of(where, query.limit, query.cursor)


def filter_of(values: dict[str, Any]) -> Filter:
    """The filter of a query string or a body, which has one state; raises InvalidInput."""
    names = (name for name in Filter.__struct_fields__ if name != "states")
    states = () if values["state"] is None else (values["state"],)
    return validated(Filter(**{name: values[name] for name in names}, states=states))


ROUTES = [
    Route("GET", "/v1/jobs", list_jobs, scope=Scope.READ, query=ListQuery, answer=Page | Summaries),
]
