"""Run the benchmarks: python -m bench [name ...]; without a name all but the rivals, which have to
be installed first."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import (
    backlog,
    batches,
    beside,
    callers,
    churn,
    dashboard,
    foundationdb,
    postgres,
    rivals,
    service,
    shards,
    steps,
    tenants,
    workers,
)
from bench.report import Figure, show

BENCHMARKS: dict[str, Callable[[Path], list[Figure]]] = {
    "batches": batches.run,
    "callers": callers.run,
    "beside": beside.run,
    "tenants": tenants.run,
    "backlog": backlog.run,
    "postgres": postgres.run,
    "foundationdb": foundationdb.run,
    "churn": churn.run,
    "dashboard": dashboard.run,
    "steps": steps.run,
    "workers": workers.run,
    "service": service.run,
    "shards": shards.run,
    "rivals": rivals.run,
}
ON_REQUEST = ("rivals",)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    for name in names or [name for name in BENCHMARKS if name not in ON_REQUEST]:
        with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
            figures += BENCHMARKS[name](Path(folder).absolute())
    show(figures)
    return 0 if all(figure.kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
