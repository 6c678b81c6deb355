"""A job of a request becomes a job of the queue, in most cases without being converted."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from tenure.errors import InvalidPayload
from tenure.model import job
from tenure.model.job import NewJob, prepare
from tenure.server.bodies import JobBody

NOW, LIMIT = 1_763_251_792_000, 1_000
_decode = msgspec.json.Decoder(JobBody).decode


def test_the_body_of_a_job_has_the_fields_of_a_new_job_in_their_order() -> None:
    assert JobBody.__struct_fields__ == NewJob.__struct_fields__
    names = JobBody.__struct_fields__
    body, new = _decode(b'{"queue":"q"}'), NewJob(queue="q")
    for name in set(names) - {"payload"}:
        assert getattr(body, name) == getattr(new, name), name


def test_a_body_is_a_job_as_it_is_unless_it_says_when_to_run() -> None:
    body = _decode(b'{"queue":"q","payload":[1],"delay":2}')
    assert body.new() is body
    later = _decode(b'{"queue":"q","payload":[1],"run_at":1763251793000}').new()
    assert type(later) is NewJob
    assert later.run_at == datetime(2025, 11, 16, 0, 9, 53, tzinfo=UTC)
    (spec,) = prepare([body], NOW, LIMIT)
    assert (spec.queue, bytes(spec.payload), spec.delay_ms) == ("q", b"[1]", 2000)
    (spec,) = prepare([later], NOW, LIMIT)
    assert (spec.delay_ms, spec.run_at) == (0, 1763251793000)


def test_many_bodies_are_prepared_together(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [_decode(b'{"queue":"q","payload":%d}' % n) for n in range(20)]
    alone = [prepare([body], NOW, LIMIT)[0] for body in bodies]
    monkeypatch.setattr(job, "_prepare_each", None)  # the slower way
    together = prepare(bodies, NOW, LIMIT)
    assert [msgspec.structs.replace(one, id="") for one in together] == [
        msgspec.structs.replace(one, id="") for one in alone
    ]


def test_bodies_with_several_lines_or_without_json_are_prepared_alike() -> None:
    text = b'{"queue":"q","payload":{"a":\n%d}}'
    specs = prepare([_decode(text % n) for n in range(20)], NOW, LIMIT)
    assert [bytes(spec.payload) for spec in specs] == [b'{"a":\n%d}' % n for n in range(20)]
    wrong = _decode(b'{"queue":"q","payload":"\xff"}')
    with pytest.raises(InvalidPayload, match=r"jobs\[10\].payload: is not JSON"):
        prepare([*[_decode(text % n) for n in range(10)], wrong], NOW, LIMIT)
    with pytest.raises(InvalidPayload, match=r"jobs\[10\].payload: is not JSON"):
        prepare([*[_decode(b'{"queue":"q"}') for n in range(10)], wrong], NOW, LIMIT)


class Longer(NewJob, kw_only=True):
    """A kind of job with a field of its own."""

    note: str = ""


def test_a_job_with_fields_of_its_own_is_prepared_by_itself() -> None:
    jobs = [Longer(queue="q", payload=n, note="n") for n in range(20)]
    assert [bytes(spec.payload) for spec in prepare(jobs, NOW, LIMIT)] == [
        b"%d" % n for n in range(20)
    ]
