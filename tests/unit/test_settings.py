"""Every setting, from the environment and as given."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tenure
from tenure import InvalidInput, Settings
from tenure.settings import PREFIX, from_environment
from tenure.testing import ManualClock

FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}
SPANS = [
    "lease",
    "pop_lease",
    "keep_done",
    "keep_cancelled",
    "keep_dead",
    "keep_errors",
    "keep_audit",
    "busy_timeout",
    "unknown_kind",
]
NUMBERS = ["payload_limit", "max_waiting", "max_waiting_bytes", "sweep"]
MAY_BE_NONE = [
    "keep_done",
    "keep_cancelled",
    "keep_dead",
    "keep_errors",
    "keep_audit",
    "unknown_kind",
]


def variable(name: str) -> str:
    return PREFIX + name.upper()


def test_this_test_knows_every_setting() -> None:
    assert {"url", "token", *SPANS, *NUMBERS} == set(FIELDS)


def test_defaults_are_as_documented() -> None:
    assert (
        from_environment({})
        == Settings()
        == Settings(
            url="sqlite:///tenure.db",
            lease=60,
            payload_limit=1_048_576,
            keep_done=604_800,
            keep_cancelled=604_800,
            keep_dead=2_592_000,
            max_waiting=100_000,
            max_waiting_bytes=268_435_456,
            busy_timeout=30,
            unknown_kind=86_400,
            pop_lease=300,
            sweep=1_000,
        )
    )


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("url", "memory://", "memory://"),
        ("url", "5", "5"),
        *[(name, "12.5", 12.5) for name in SPANS],
        *[(name, "7", 7) for name in SPANS + NUMBERS],
        *[(name, "none", None) for name in MAY_BE_NONE],
    ],
)
def test_a_setting_is_read_from_the_environment(name: str, text: str, value: Any) -> None:
    assert from_environment({variable(name): text}) == msgspec.structs.replace(
        Settings(), **{name: value}
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[(name, text) for name in SPANS for text in ("", "soon", "1h", "-1", "nan", "inf")],
        *[(name, text) for name in NUMBERS for text in ("", "many", "0", "-1", "1.5", "none")],
        ("lease", "0"),
        ("lease", "none"),
        ("busy_timeout", "none"),
        ("payload_limit", str(2**30 + 1)),
    ],
)
def test_a_bad_value_names_its_variable(name: str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        from_environment({variable(name): text})
    assert caught.value.field == variable(name)
    assert str(caught.value).startswith(variable(name))


def test_what_is_given_comes_before_the_environment() -> None:
    environ = {"TENURE_URL": "sqlite:///theirs.db", "TENURE_SWEEP": "5"}
    settings = from_environment(environ, url="memory://", lease=None)
    assert (settings.url, settings.sweep, settings.lease) == ("memory://", 5, 60)


def test_a_bad_value_that_is_given_is_refused() -> None:
    with pytest.raises(InvalidInput, match="sweep"):
        from_environment({}, sweep=0)


def test_other_variables_do_not_matter() -> None:
    environ = {"HOME": "/root", "URL": "memory://", "TENURE_COLOUR": "blue", "tenure_url": "x"}
    assert from_environment(environ) == Settings()


def test_settings_stay_as_they_are() -> None:
    settings: Any = Settings()
    with pytest.raises(AttributeError):
        settings.lease = 5


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_says_what_it_is(name: str) -> None:
    hints = msgspec.inspect.type_info(Settings)
    assert isinstance(hints, msgspec.inspect.StructType)
    (field,) = [field for field in hints.fields if field.name == name]
    assert isinstance(field.type, msgspec.inspect.Metadata)
    description = (field.type.extra_json_schema or {}).get("description", "")
    assert description.endswith(".")


def test_connect_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_URL", "memory://")
    monkeypatch.setenv("TENURE_LEASE", "7")
    clock = ManualClock()
    with tenure.connect(clock=clock) as queue:
        assert (queue.settings.url, queue.settings.lease) == ("memory://", 7)
        queue.enqueue("q")
        assert queue.claim("q")[0].lease_until == clock.now_ms() + 7_000


def test_connect_takes_settings_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_LEASE", "7")
    with tenure.connect("memory://", settings=Settings(lease=9)) as queue:
        assert (queue.settings.url, queue.settings.lease) == ("memory://", 9)


@pytest.mark.parametrize("bad", [{"lease": -1}, {"sweep": 0}, {"payload_limit": "big"}], ids=str)
def test_connect_refuses_settings_that_cannot_be(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        tenure.connect("memory://", settings=Settings(**bad)).close()
