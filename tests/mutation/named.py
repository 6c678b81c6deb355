"""Mutations that once survived, found by an adversarial review. Each must be killed, for good.

They are matched by their source text within a function, so they move with the code. Where one no
longer applies, find the place that makes the same decision now and name it here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.mutation import sql
from tests.mutation.mutation import Mutation


class NoLongerApplies(Exception):
    """The code that a named mutation changes is gone."""


class Named(NamedTuple):
    """Replace `old`, which stands once in a function, by `new`. Spaces do not matter. Of several
    functions (`one|other`), the first that there is. `test` is the test that must notice."""

    name: str
    path: str
    function: str
    old: str
    new: str
    test: str

    @property
    def kind(self) -> str:
        return f"named: {self.name}"


_POSTGRES = "src/tenure/engines/postgres"

NAMED = (
    Named(
        "drop-empty-with-news", f"{_POSTGRES}/books.sql", "tenure.drop_empty()",
        "AND NOT EXISTS (SELECT FROM tenure.news n WHERE n.queue = in_queue AND n.lane = l.id)",
        "",
        "tests/engines/postgres/test_races.py"
        "::test_a_lane_is_kept_for_a_job_that_came_after_the_books_were_brought_up_to_date",
    ),
    Named(
        "claim-plain-unchecked", f"{_POSTGRES}/claiming.sql", "tenure.claim_from_lane()",
        "FOR KEY SHARE; IF NOT tenure.is_plain(one) THEN",
        "FOR KEY SHARE; IF false THEN",
        "tests/engines/postgres/test_races.py"
        "::test_a_queue_that_is_bound_while_a_claim_waits_for_it_is_no_longer_plain",
    ),
    Named(
        "open-books-unchecked", f"{_POSTGRES}/claiming.sql", "tenure.open_books()",
        "beside := tenure.is_plain(ids[1]);",
        "beside := true;",
        "tests/engines/postgres/test_bounds.py"
        "::test_a_claim_that_waits_is_bound_by_what_was_set_meanwhile",
    ),
    Named(
        "unfolded-is-folded", f"{_POSTGRES}/books.sql", "tenure.unfolded()",
        "CASE WHEN folded_on = tenure.home() THEN folded ELSE '0' END",
        "folded",
        "tests/engines/postgres/test_server.py"
        "::test_a_younger_server_finds_jobs_in_a_queue_that_was_empty",
    ),
    Named(
        "bucket-read-by-snapshot", "src/tenure/engines/foundationdb/bucket.py",
        "available|__init__",
        "tx.tr.get(tx.keys.pack(k.BUCKET, queue))",
        "tx.tr.snapshot.get(tx.keys.pack(k.BUCKET, queue))",
        "tests/engines/foundationdb/test_rates.py"
        "::test_servers_that_claim_at_once_do_not_exceed_a_rate_together",
    ),
    Named(
        "reconcile-keeps-the-head", "src/tenure/engines/sqlite/counters.py", "recounted",
        "lane.counts, lane.line, lane.whole, lane.moved = counts, [], False, MIXED",
        "lane.counts, lane.whole, lane.moved = counts, False, MIXED",
        "tests/unit/test_reconcile_heads.py::test_a_sqlite_lane_gets_its_first_job_back",
    ),
    Named(
        "reconcile-keeps-the-head-on-postgres", f"{_POSTGRES}/books.sql", "tenure.recount()",
        "sum(x.cancelled), (min(x.head))[1], (min(x.head))[2]",
        "sum(x.cancelled), NULL, NULL",
        "tests/unit/test_reconcile_heads.py::test_a_postgresql_lane_gets_its_first_job_back",
    ),
    Named(
        "one-sweep-for-fused-claims", "src/tenure/engines/sqlite/claim.py", "claim",
        "tx.most_swept * len(calls)",
        "tx.most_swept",
        "tests/conformance/test_batches.py"
        "::test_each_claim_of_a_batch_looks_after_as_many_jobs_as_it_would_alone",
    ),
    Named(
        "one-sweep-for-fused-claims-on-postgres", "src/tenure/engines/postgres/claim.py", "",
        "tx.most_swept * len(calls)",
        "tx.most_swept",
        "tests/conformance/test_batches.py"
        "::test_each_claim_of_a_batch_looks_after_as_many_jobs_as_it_would_alone",
    ),
    Named(
        "once-forgotten-early", "src/tenure/model/ops.py", "",
        "ONCE_MS = 15 * 60_000",
        "ONCE_MS = 60_000",
        "tests/conformance/test_once.py::test_a_key_is_kept_for_a_quarter_of_an_hour",
    ),
)  # fmt: skip


def mutation(named: Named, text: str) -> Mutation:
    """What it changes in the text of its file."""
    pattern = re.compile(r"\s+".join(re.escape(word) for word in named.old.split()))
    matches = [found for place in _places(named, text) for found in pattern.finditer(text, *place)]
    if len(matches) != 1:
        raise NoLongerApplies(
            f"{named.name}: `{named.old}` stands {len(matches)} times in {named.path} "
            f"{named.function or '(whole file)'}; update tests/mutation/named.py"
        )
    found = matches[0]
    line = text.count("\n", 0, found.start()) + 1
    return Mutation(
        named.path, named.function, named.kind, named.old, named.new,
        found.start(), found.end(), named.new, line,
    )  # fmt: skip


def _places(named: Named, text: str) -> list[tuple[int, int]]:
    """Where its function begins and ends; functions in SQL may share a name."""
    if not named.function:
        return [(0, len(text))]
    for name in named.function.split("|"):
        if named.path.endswith(".sql"):
            if found := [(one.start, one.end) for one in sql.sections(text) if one.name == name]:
                return found
        elif begin := re.search(rf"^ *def {re.escape(name)}\(", text, re.MULTILINE):
            end = re.compile(r"^\S", re.MULTILINE).search(text, text.find(":\n", begin.end()))
            return [(begin.start(), end.start() if end else len(text))]
    raise NoLongerApplies(
        f"{named.name}: there is no {named.function} in {named.path}; "
        "update tests/mutation/named.py"
    )
