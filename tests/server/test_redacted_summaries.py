"""Redaction of summaries, whose previews may be cut."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tenure
from tenure.model.queries import Summaries
from tenure.server.redaction import HIDDEN, Redaction


@pytest.mark.parametrize(
    ("payload", "preview"),
    [
        ({"a": 1}, '{"a":1}'),
        ({"secret": "x", "a": 1}, '{"secret":"[redacted]","a":1}'),
        ({"secret": "x" * 300, "a": 1}, HIDDEN),
        ({"a": "x" * 300, "secret": "y"}, '{"a":"' + "x" * 194),
    ],
)
def test_a_preview_shows_no_field_that_is_hidden(payload: Any, preview: str) -> None:
    with tenure.connect("memory://") as queue:
        queue.enqueue("q", payload)
        found: Summaries = Redaction(["secret"]).of(queue.summaries())
    assert [one.payload_preview for one in found.jobs] == [preview]


def test_a_name_is_hidden_in_any_case_in_any_script() -> None:
    text = '{"PÄSSWORT": "geheim", "Пароль": "тайна", "a": 1}'
    shown = Redaction(["pässwort", "ПАРОЛЬ"]).raw(msgspec.Raw(text.encode()))
    hidden = {"PÄSSWORT": HIDDEN, "Пароль": HIDDEN, "a": 1}
    assert msgspec.json.decode(shown) == hidden
