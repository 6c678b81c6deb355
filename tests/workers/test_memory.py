"""What is left of jobs that have ended."""

from __future__ import annotations

import gc

from tenure import Tenure
from tenure.worker.run import Run
from tests.workers.conftest import work_off


def _runs() -> list[Run]:
    return [one for one in gc.get_objects() if type(one) is Run]


def test_a_job_that_has_ended_leaves_nothing_for_the_garbage_collector(app: Tenure) -> None:
    @app.task
    async def nothing() -> None: ...

    nothing.enqueue_many([()] * 20)
    gc.collect()
    before = {id(one) for one in _runs()}  # of other tests
    gc.disable()
    try:
        assert work_off(app).handled == 20
        left = [one for one in _runs() if id(one) not in before]
    finally:
        gc.enable()
    assert left == []
