"""The file of tokens: only the hashes of their secrets are kept."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tenure.errors import InvalidInput, NotFound
from tenure.model.fields import check_label, check_name
from tenure.server.auth import Guests, Scope, Token, Tokens, hash_of

log = logging.getLogger("tenure.service")

PREFIX = "tnr_"
LOOK_SECONDS = 1.0  # between checks whether the file has changed


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[Token] = []


class TokenFile(Tokens):
    """The tokens of a file, which is reloaded when it changes. While the file cannot be read, only
    the `fixed` tokens are known."""

    def __init__(
        self,
        path: Path,
        fixed: Iterable[Token],
        now: Callable[[], float],
        guests: Guests | None = None,
    ) -> None:
        self._path = path
        self._fixed = list(fixed)
        self._now = now
        self._look_at = now() + LOOK_SECONDS
        self._seen = self._version()
        super().__init__([*read_tokens(path), *self._fixed], required=True, guests=guests)

    def _known(self) -> dict[str, Token]:
        return self._known_now() if self._now() >= self._look_at else self._by_hash

    def _known_now(self) -> dict[str, Token]:
        self._look_at = self._now() + LOOK_SECONDS
        version = self._version()
        if version != self._seen:
            self._seen = version
            self._load()
        return self._by_hash

    def _load(self) -> None:
        tokens: list[Token] = []
        try:
            tokens = read_tokens(self._path)
        except InvalidInput as error:
            log.warning("no token of %s is accepted: %s", self._path, error)
        else:
            log.info("reloaded %s: %s", self._path, ", ".join(one.name for one in tokens) or "-")
        self._by_hash = {token.hash: token for token in (*tokens, *self._fixed)}

    def _version(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_ino, found.st_size


def read_tokens(path: Path) -> list[Token]:
    """Return the tokens of a file; raises InvalidInput."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).tokens
    except FileNotFoundError:
        raise InvalidInput("tokens", f"there is no file {path}") from None
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidInput("tokens", f"{path} cannot be read: {error}") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock out other writers of the file."""
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise InvalidInput("tokens", f"{path} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _write_tokens(path: Path, tokens: list[Token]) -> None:
    """Replace the file atomically. Only its owner may read it, and links are not followed."""
    text = msgspec.json.format(msgspec.json.encode(_File(tokens)), indent=2)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "wb") as opened:
            opened.write(text + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InvalidInput("tokens", f"{path} cannot be written: {error.strerror}") from None


def create_token(
    path: Path,
    name: str,
    scopes: Iterable[str],
    queues: Iterable[str] = (),
    tenants: Iterable[str] = (),
) -> str:
    """Add a token to a file. Returns the secret, which is not stored anywhere."""
    check_name("name", name)
    wanted = tuple(Scope(scope) for scope in scopes)
    if not wanted:
        raise InvalidInput("scopes", f"name at least one of {', '.join(Scope)}")
    secret = PREFIX + secrets.token_urlsafe(32)
    token = Token(
        name,
        hash_of(secret),
        wanted,
        tuple(check_name("queue", queue) for queue in queues) or None,
        tuple(check_label("tenant", tenant) for tenant in tenants) or None,
    )
    with _locked(path):
        tokens = read_tokens(path) if path.exists() else []
        if any(one.name == name for one in tokens):
            raise InvalidInput("name", f"there is already a token named {name!r}")
        _write_tokens(path, [*tokens, token])
    return secret


def revoke_token(path: Path, name: str) -> None:
    """Remove a token from a file."""
    with _locked(path):
        tokens = read_tokens(path)
        left = [token for token in tokens if token.name != name]
        if len(left) == len(tokens):
            raise NotFound(f"there is no token named {name!r}")
        _write_tokens(path, left)


def tokens_of(
    path: Path | None, environ: Mapping[str, str], guests: Guests | None = None
) -> Tokens:
    """Return the tokens of a file and of the environment (TENURE_TOKEN, EDGE_API_TOKEN). Raises
    InvalidInput if the file holds none."""
    fixed = [
        Token(name, hash_of(environ[name]), (Scope.ADMIN,))
        for name in ("TENURE_TOKEN", "EDGE_API_TOKEN")
        if environ.get(name)
    ]
    if path is None:
        return Tokens(fixed, guests=guests)
    exists = path.exists()
    if not exists or not read_tokens(path):
        problem = "holds no tokens" if exists else "does not exist"
        raise InvalidInput(
            "tokens",
            f"{path} {problem}: make one with `tenure token create NAME --scope admin "
            f"--file {path}`",
        )
    return TokenFile(path, fixed, time.monotonic, guests)
