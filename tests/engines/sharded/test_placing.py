"""Which shard a tenant is on, and which shards a URL names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import tenure
from tenure import InvalidInput
from tenure.engines.sharded.members import is_sharded, members_of
from tenure.engines.sharded.placing import Placing


def test_a_range_names_one_store_for_each_number() -> None:
    members = members_of("sqlite:///jobs-{0..2}.db")
    assert members.urls == {str(n): f"sqlite:///jobs-{n}.db" for n in range(3)}
    assert members.spread


@pytest.mark.parametrize(
    ("options", "spread"),
    [
        ("schema=jobs_{1..2}", True),
        ("schema=jobs_{1..2}&without_tenant=spread", True),
        ("schema=jobs_{1..2}&without_tenant=together", False),
        ("without_tenant=together&schema=jobs_{1..2}", False),
    ],
)
def test_an_option_keeps_jobs_without_a_tenant_together(options: str, spread: bool) -> None:
    members = members_of(f"postgresql:///shop?{options}")
    assert members.spread == spread
    assert members.urls["1"] == "postgresql:///shop?schema=jobs_1"


def test_a_file_names_the_shards(tmp_path: Path) -> None:
    file = tmp_path / "shards.toml"
    file.write_text(
        'without_tenant = "together"\n[shards]\n'
        'a = "sqlite:///a.db"\nb = "postgresql://db.example/b"\n'
    )
    members = members_of(f"shards:///{file}")
    assert members.urls == {"a": "sqlite:///a.db", "b": "postgresql://db.example/b"}
    assert not members.spread


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///jobs-{3..0}.db",
        "sqlite:///jobs-{0..16}.db",
        "sqlite:///{0..1}-{0..1}.db",
        "sqlite:///jobs-{0..1}.db?without_tenant=none",
        "shards:///nowhere.toml",
        "shards://",
    ],
)
def test_a_url_that_names_no_shards_is_refused(url: str) -> None:
    assert is_sharded(url)
    with pytest.raises(InvalidInput):
        tenure.connect(url)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[shards]\n",
        '[shards]\n"a b" = "sqlite:///a.db"\n',
        '[shards]\na = "memory://"\n',
        '[shards]\na = "http://127.0.0.1:1"\n',
        '[shards]\na = "sqlite:///x-{0..1}.db"\n',
        '[shards]\na = "sqlite:///a.db"\nb = "sqlite:///a.db"\n',
        'without_tenants = "spread"\n[shards]\na = "sqlite:///a.db"\n',
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "shards.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput):
        tenure.connect(f"shards:///{file}")


def test_the_place_of_a_tenant_never_changes() -> None:
    """A new hash would lose every tenant: these are stored in users' stores."""
    placing = Placing(["0", "1", "2", "3"], spread=True)
    assert [placing.of_tenant(name) for name in ("acme", "bolt", "cask", "é")] == PLACES


PLACES = [0, 0, 2, 0]


def test_tenants_are_spread_evenly() -> None:
    placing = Placing(["a", "b", "c", "d"], spread=True)
    counts = Counter(placing.of_tenant(f"tenant-{n}") for n in range(4_000))
    assert all(900 < count < 1_100 for count in counts.values())


def test_a_new_shard_takes_its_share_and_moves_nothing_else() -> None:
    before, after = Placing(["a", "b"], spread=True), Placing(["a", "b", "c"], spread=True)
    names = [f"tenant-{n}" for n in range(3_000)]
    moved = [name for name in names if before.of_tenant(name) != after.of_tenant(name)]
    assert {after.of_tenant(name) for name in moved} == {2}
    assert 900 < len(moved) < 1_100
