"""Mutations that once survived, found by an adversarial review. Each must be killed in every run.

They are matched by their source text within a function, so they move with the code. If one no
longer applies, find the code that makes the same decision now and name it here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.mutation import sql
from tests.mutation.mutation import Mutation


class NoLongerApplies(Exception):
    """The code that a named mutation changes no longer exists."""


class Named(NamedTuple):
    """Replace `old`, which occurs once in a function, by `new`. Whitespace is ignored. Of several
    functions (`one|other`), the first that exists is used."""

    name: str
    path: str
    function: str
    old: str
    new: str


_POSTGRES = "src/tenure/engines/postgres/postgres.sql"

NAMED = (
    Named(
        "drop-empty-with-news", _POSTGRES, "tenure.drop_empty()",
        "AND NOT EXISTS (SELECT FROM tenure.news n WHERE n.queue = in_queue AND n.lane = l.id)",
        "",
    ),
    Named(
        "claim-plain-unchecked", _POSTGRES, "tenure.claim_plain()",
        "END IF; IF NOT tenure.is_plain(one) THEN",
        "END IF; IF false THEN",
    ),
    Named(
        "open-books-unchecked", _POSTGRES, "tenure.open_books()",
        "beside := tenure.is_plain(ids[1]);",
        "beside := true;",
    ),
    Named(
        "unfolded-is-folded", _POSTGRES, "tenure.unfolded()",
        "CASE WHEN folded_on = tenure.home() THEN folded ELSE '0' END",
        "folded",
    ),
    Named(
        "bucket-read-by-snapshot", "src/tenure/engines/foundationdb/bucket.py",
        "available|__init__",
        "tx.tr.get(tx.keys.pack(k.BUCKET, queue))",
        "tx.tr.snapshot.get(tx.keys.pack(k.BUCKET, queue))",
    ),
    Named(
        "reconcile-keeps-the-head", "src/tenure/engines/sqlite/upkeep.py", "_reconcile",
        "lane.head_known, lane.dirty = False, True",
        "lane.head_known, lane.dirty = True, True",
    ),
    Named(
        "reconcile-keeps-the-head-on-postgres", _POSTGRES, "tenure.recount()",
        "o.cancelled, o.head[1], o.head[2]",
        "o.cancelled, NULL, NULL",
    ),
    Named(
        "one-sweep-for-fused-claims", "src/tenure/engines/sqlite/claim.py", "_pick",
        "tx.sweep * calls",
        "tx.sweep",
    ),
    Named(
        "one-sweep-for-fused-claims-on-postgres", "src/tenure/engines/postgres/claim.py", "",
        "tx.sweep * len(calls)",
        "tx.sweep",
    ),
    Named(
        "once-forgotten-early", "src/tenure/model/ops.py", "",
        "ONCE_MS = 15 * 60_000",
        "ONCE_MS = 60_000",
    ),
)  # fmt: skip


def mutation(named: Named, text: str) -> Mutation:
    """The mutation in the text of its file."""
    start, end = _function(named, text)
    pattern = r"\s+".join(re.escape(word) for word in named.old.split())
    matches = [*re.compile(pattern).finditer(text, start, end)]
    if len(matches) != 1:
        raise NoLongerApplies(
            f"{named.name}: `{named.old}` stands {len(matches)} times in {named.path} "
            f"{named.function or '(whole file)'}; update tests/mutation/named.py"
        )
    found = matches[0]
    line = text.count("\n", 0, found.start()) + 1
    return Mutation(
        named.path, named.function, f"named: {named.name}", named.old, named.new,
        found.start(), found.end(), named.new, line,
    )  # fmt: skip


def _function(named: Named, text: str) -> tuple[int, int]:
    """Where its function begins and ends."""
    if not named.function:
        return 0, len(text)
    for name in named.function.split("|"):
        if named.path.endswith(".sql"):
            for section in sql.sections(text):
                if section.name == name:
                    return section.start, section.end
        elif begin := re.search(rf"^ *def {re.escape(name)}\(", text, re.MULTILINE):
            end = re.compile(r"^\S", re.MULTILINE).search(text, text.find(":\n", begin.end()))
            return begin.start(), end.start() if end else len(text)
    raise NoLongerApplies(
        f"{named.name}: there is no {named.function} in {named.path}; "
        "update tests/mutation/named.py"
    )
