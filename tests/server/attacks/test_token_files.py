"""Files of tokens: missing, emptied, changed while the service runs, written by two at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tenure.errors import InvalidInput, Unauthorized
from tenure.server.auth import Tokens
from tenure.server.token_file import (
    LOOK_SECONDS,
    TokenFile,
    create_token,
    read_tokens,
    revoke_token,
    tokens_of,
)
from tests.unit.cli.terminal import Terminal


class Now:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def go_on(self) -> None:
        self.seconds += LOOK_SECONDS


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


@pytest.fixture
def secret(path: Path) -> str:
    return create_token(path, "web", ["admin"])


def lets_in(tokens: Tokens, secret: str | None) -> bool:
    try:
        tokens.who(None if secret is None else f"Bearer {secret}")
    except Unauthorized:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "problem"), [(None, "does not exist"), ('{"tokens": []}', "holds no tokens")]
)
def test_a_file_without_tokens_is_refused_at_the_start(
    tmp_path: Path, path: Path, text: str | None, problem: str
) -> None:
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInput, match=f"{problem}: make one with `tenure token create"):
        tokens_of(path, {"TENURE_TOKEN": "x"})
    assert problem in Terminal(tmp_path).error("serve", "--tokens", str(path))


def test_where_tokens_are_required_and_none_is_known_nobody_is_let_in() -> None:
    assert not lets_in(Tokens([], required=True), None)
    assert not lets_in(Tokens([], required=True), "")
    assert lets_in(Tokens([]), None)


@pytest.mark.parametrize("harm", ["emptied", "removed", "garbled"])
def test_a_file_that_is_lost_while_the_service_runs_lets_nobody_in(
    path: Path, secret: str, now: Now, harm: str
) -> None:
    tokens = TokenFile(path, [], now)
    assert lets_in(tokens, secret)
    if harm == "removed":
        path.unlink()
    else:
        path.write_text('{"tokens": []}' if harm == "emptied" else "nonsense")
    now.go_on()
    assert not lets_in(tokens, secret)
    assert not lets_in(tokens, None)


def test_a_token_is_revoked_and_added_without_a_restart(path: Path, secret: str, now: Now) -> None:
    tokens = TokenFile(path, [], now)
    mine = tokens.who(f"Bearer {secret}")
    other = create_token(path, "other", ["read"])
    revoke_token(path, "web")
    assert lets_in(tokens, secret)  # it looks once a second
    now.go_on()
    assert not lets_in(tokens, secret)
    assert not tokens.is_current(mine)
    assert lets_in(tokens, other)


def test_a_token_whose_scopes_changed_is_not_the_same_any_more(
    path: Path, secret: str, now: Now
) -> None:
    tokens = TokenFile(path, [], now)
    mine = tokens.who(f"Bearer {secret}")
    path.write_text(path.read_text().replace('"admin"', '"read"'))
    now.go_on()
    assert not tokens.is_current(mine)
    assert tokens.who(f"Bearer {secret}").scopes == ("read",)


def test_two_who_add_tokens_at_once_lose_none(path: Path) -> None:
    def add(start: int) -> None:
        for n in range(start, start + 10):
            create_token(path, f"token-{n}", ["read"])

    threads = [threading.Thread(target=add, args=(start,)) for start in range(0, 40, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_tokens(path)) == 40
    assert [one.name for one in path.parent.iterdir()] == ["tokens.json"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_in_the_way_is_replaced_and_not_followed(tmp_path: Path, path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text('{"tokens": []}')
    path.symlink_to(elsewhere)
    create_token(path, "web", ["read"])
    assert elsewhere.read_text() == '{"tokens": []}'
    assert not path.is_symlink()
