"""The outcomes of paths that are counted apart, because each of them is a path of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenure.engines.postgres.session import Db
from tenure.model import ops
from tests.simulation.compare.rigs import POSTGRES_PLACE
from tests.support import postgres

Outcome = Callable[[tuple[Any, ...], Any], str]  # of the arguments and the result

# It does not call the functions of the schema, whose calls are counted.
_WHY_REFUSED = """
    SELECT CASE
        WHEN q.folded_on IS NULL THEN 'no books'
        WHEN q.max_leased IS NOT NULL OR q.rate IS NOT NULL OR q.paused THEN 'a limit'
        WHEN 1 <> (SELECT count(*) FROM {0}.lanes l JOIN {0}.tenants t ON t.id = l.tenant
            WHERE t.queue = q.id) THEN 'several lanes'
        WHEN EXISTS (SELECT FROM {0}.states s WHERE s.queue = q.id
            AND (s.state IN (1, 3) AND s.at <= {0}.moment(%(given)s)
                OR s.state <= 2 AND s.expires_at <= {0}.moment(%(given)s))) THEN 'something is due'
        WHEN EXISTS (SELECT FROM {0}.deps d JOIN {0}.jobs j ON j.seq = d.parent
            WHERE j.id = ANY (%(ids)s)) THEN 'a child waits'
        WHEN (SELECT count(*) FROM {0}.states s JOIN {0}.jobs j ON j.seq = s.seq
            JOIN unnest(%(ids)s, %(tokens)s) a (id, token) ON a.id = j.id AND a.token = s.token
            WHERE s.state = 3) < cardinality(%(ids)s) THEN 'a lost lease'
        ELSE 'other' END
    FROM {0}.queues q WHERE q.queue = %(queue)s"""


def _ack_and_claim(args: tuple[Any, ...], result: Any) -> str:
    """Nothing has changed if it was refused, so the reason can still be read."""
    if result is not None:
        found = any(isinstance(one, ops.Leased) and one.jobs for one in result)
        return "some jobs" if found else "no job"
    db, _, batch, given, _ = args
    assert isinstance(db, Db)
    acks = [op for op in batch if isinstance(op, ops.Ack)]
    query = _WHY_REFUSED.format(postgres.schema_of(POSTGRES_PLACE))
    row = db._connection.execute(
        query.encode(),
        {
            "given": given,
            "ids": [op.id for op in acks],
            "tokens": [op.token for op in acks],
            "queue": batch[-1].queues[0],
        },
    ).fetchone()
    return f"refused, {row[0] if row else 'no queue'}"


def _first_left(args: tuple[Any, ...], result: Any) -> str:
    return "the next is unknown" if args[2] is None else "the next is known"


def _insert_plain(args: tuple[Any, ...], result: Any) -> str:
    return "plain" if result else "others"


OUTCOMES: dict[str, Outcome] = {
    "acks and a claim in one statement": _ack_and_claim,
    "jobs that leave a lane together": _first_left,
    "an insert by columns": _insert_plain,
}
