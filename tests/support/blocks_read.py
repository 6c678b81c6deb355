"""How much a read costs on PostgreSQL, in rows and blocks instead of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from psycopg.rows import tuple_row

from tenure.engines.postgres.session import Db, array

_NOT_EXPLAINED = ("begin_reading", "read_settings", "commit")


class Cost:
    """What the statements of a read looked at."""

    def __init__(self) -> None:
        self.statements = 0
        self.rows = 0  # of tables, also those that a filter removed
        self.blocks: Counter[str] = Counter()  # by table, with its indexes and texts

    def add(self, plan: dict[str, Any]) -> None:
        if "Relation Name" in plan:
            rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
            self.rows += round(rows * plan["Actual Loops"])
        for part in plan.get("Plans", ()):
            self.add(part)
        name = plan.get("Relation Name", "")
        self.blocks[name] += _blocks(plan) - sum(map(_blocks, plan.get("Plans", ())))


def _blocks(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def cost_of(work: Callable[[], object]) -> Cost:
    """Run something that reads, with each of its statements explained first."""
    cost = Cost()
    named, send = Db.named, Db.send

    def explain(db: Db, name: str, values: Any) -> None:
        if name not in _NOT_EXPLAINED:
            cursor = db._connection.cursor(row_factory=tuple_row)
            query = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + db._sql[name]
            row = cursor.execute(query, values, prepare=False).fetchone()
            assert row is not None
            cost.statements += 1
            cost.add(row[0][0]["Plan"])

    def named_explained(db: Db, name: str, params: dict[str, Any]) -> Any:
        explain(db, name, params)
        return named(db, name, params)

    def sent_explained(db: Db, name: str, *params: Any) -> Any:
        values = [array(value) if type(value) is list else value for value in params]
        explain(db, name, values)
        return send(db, name, *params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Db, "named", named_explained)
        patch.setattr(Db, "send", sent_explained)
        work()
    return cost
