"""Failures of the same cause get the same group, whatever their numbers, ids and lines are."""

from __future__ import annotations

import pytest

from tenure.features.errors.fingerprint import GROUP_LENGTH, group_of, other_group, own_frame, plain
from tenure.model.job import Failure

TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/.venv/lib/python3.12/site-packages/tenure/worker/run.py", line 12, in run
    await call()
  File "/srv/app/shop/mail.py", line {line}, in send
    connect()
  File "/usr/lib/python3.12/smtplib.py", line 640, in connect
    raise OSError
OSError: no
"""


def failure(message: str = "no", type: str = "OSError", line: int = 7) -> Failure:
    return Failure(1, 1, message, type, TRACEBACK.format(line=line))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("user 17 is unknown", "user 18 is unknown"),
        ("no such file: 'a.txt'", "no such file: 'b c.txt'"),
        ("order 018f3c1e-7b5a-7c3e-9b0a-1c2d3e4f5a6b failed",
         "order 018f3c1e-0000-7c3e-9b0a-1c2d3e4f5a6b failed"),
        ("at 0x7f2a, digest deadbeef01", "at 0x1, digest 0123456789abcdef"),
        ("job mail-7 took 1.5 s", "job mail-8123 took 12.25 s"),
        ("two  spaces\nand a line", "two spaces and a line"),
    ],
)  # fmt: skip
def test_messages_that_differ_in_values_only_are_the_same(one: str, other: str) -> None:
    assert plain(one) == plain(other)
    assert group_of("q", "k", failure(one)) == group_of("q", "k", failure(other))


def test_words_tell_messages_apart() -> None:
    assert plain("connection refused") == "connection refused"
    assert plain("connection refused") != plain("connection reset")
    assert plain("facade") == "facade"  # letters of hexadecimal numbers, but a word


def test_everything_that_tells_causes_apart_makes_another_group() -> None:
    base = group_of("q", "k", failure())
    others = [
        group_of("p", "k", failure()),
        group_of("q", "l", failure()),
        group_of("q", "k", failure(type="ValueError")),
        group_of("q", "k", failure("another")),
        group_of("q", "k", Failure(1, 1, "no", "OSError")),
        other_group("q"),
    ]
    assert len({base, *others}) == 1 + len(others)
    assert all(len(one) == GROUP_LENGTH and int(one, 16) >= 0 for one in [base, *others])


def test_an_edit_above_the_failing_line_does_not_make_another_group() -> None:
    assert group_of("q", "k", failure(line=7)) == group_of("q", "k", failure(line=99))


def test_the_frame_is_the_innermost_one_of_the_users_own_code() -> None:
    assert own_frame(failure().traceback) == "shop/mail.py:send"


def test_without_own_code_the_innermost_frame_counts() -> None:
    text = '  File "/usr/lib/python3.12/json/decoder.py", line 1, in decode\n'
    assert own_frame(text) == "json/decoder.py:decode"
    assert own_frame("a text of another language") == ""


def test_a_long_message_is_cut_and_takes_no_time() -> None:
    assert len(plain("'" * 1_000_000)) <= 500
    assert plain("a" * 8192) == "a" * 500


def test_an_id_of_letters_only_is_left_out_too() -> None:
    assert plain("order abcdefab-abcd-abcd-abcd-abcdefabcdef failed") == "order # failed"


def test_a_frame_is_a_line_of_its_own() -> None:
    """What only looks like a frame, in a message for instance, is not one."""
    quoted = 'OSError: see   File "/srv/other.py", line 1, in main\n'
    assert own_frame(TRACEBACK.format(line=1) + quoted) == "shop/mail.py:send"
