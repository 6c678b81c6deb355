"""Tokens: who sends a request, and what they may do."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from tenure.errors import InvalidInput, NotFound, Unauthorized
from tenure.model.fields import check_label, check_name
from tenure.server.exchange import Headers

log = logging.getLogger("tenure.service")

PREFIX = "tnr_"
ANONYMOUS = "(anonymous)"
# A request with one of these came through a proxy, so the address of its sender is not known.
FORWARDED = (
    *(b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"),
    *(b"x-real-ip", b"cf-connecting-ip", b"true-client-ip"),
)
LOOK_SECONDS = 1.0  # between checks whether the token file has changed


class Scope(StrEnum):
    """What a token may do."""

    PRODUCE = "produce"
    WORK = "work"
    READ = "read"
    MAINTAIN = "maintain"  # only the maintenance calls of a dialect, on its own queue
    ADMIN = "admin"  # includes all others


class Token(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A stored token. Only the hash of its secret is kept."""

    name: str
    hash: str
    scopes: tuple[Scope, ...]
    queues: tuple[str, ...] | None = None  # None: all
    tenants: tuple[str, ...] | None = None

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def own_ids(self, queue: str, tenant: str) -> str:
        """The prefix of the ids that a bound token may choose. Names are escaped, so that no two
        tenants or queues share a prefix."""
        return f"@{_escaped(queue)}/" if self.tenants is None else f"{_escaped(tenant)}/"

    @property
    def is_anonymous(self) -> bool:
        """Whether it stands for clients that have no token."""
        return self.hash == ANONYMOUS

    @property
    def is_bound(self) -> bool:
        """Whether it is limited to some queues or tenants."""
        return self.queues is not None or self.tenants is not None


EVERYTHING = Token("(no tokens are set)", "", (Scope.ADMIN,))


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F").replace("@", "%40")


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[Token] = []


def is_forwarded(headers: Headers) -> bool:
    """Whether a request came through a proxy that says so."""
    return any(headers.get(name) is not None for name in FORWARDED)


def hash_of(secret: str) -> str:
    """Hash a secret. It has 256 random bits, so an unsalted fast hash is safe."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Guests(Protocol):
    """Clients without a token that are let in."""

    token: Token

    def admit(self, address: str | None, headers: Headers) -> bool:
        """Whether to let in a client at this address."""


class Tokens:
    """The known tokens. If they are not required, every client may do everything."""

    def __init__(
        self,
        tokens: Iterable[Token] = (),
        *,
        required: bool | None = None,
        guests: Guests | None = None,
    ) -> None:
        """required: by default, whether there are any tokens. guests: clients that need none."""
        self._by_hash = {token.hash: token for token in tokens}
        self.required: bool = bool(self._by_hash or guests) if required is None else required
        self.guests: Guests | None = guests

    def of(self, headers: Headers, address: str | None) -> Token:
        """Return the token of a request from this address; raises Unauthorized."""
        if not self.required and is_forwarded(headers):
            raise Unauthorized(
                "this service has no tokens and serves only this machine, but a proxy forwarded "
                "this request: create a token with `tenure token create`"
            )
        authorization = headers.get(b"authorization")
        guests = self.guests if authorization is None else None
        if guests is not None and guests.admit(address, headers):
            return guests.token
        return self.who(authorization)

    def who(self, authorization: str | None) -> Token:
        """Return the token of an Authorization header; raises Unauthorized."""
        if not self.required:
            return EVERYTHING
        if authorization is None:
            raise Unauthorized(
                "a token is needed: send Authorization: Bearer ..., or set TENURE_TOKEN for Python "
                "and the command line"
            )
        kind, _, secret = authorization.partition(" ")
        # A lookup by hash is safe: its timing reveals nothing about the secret.
        hashed = hash_of(secret.strip())
        found = self._known().get(hashed) or self._known_now().get(hashed)
        if kind.lower() != "bearer":
            raise Unauthorized("the header must be Authorization: Bearer ..., with the token")
        if found is None:
            raise Unauthorized("this token is not known: it may be mistyped or revoked")
        return found

    def is_current(self, token: Token) -> bool:
        """Whether an accepted token is still valid: it may have been revoked or changed."""
        if self.guests is not None and token is self.guests.token:
            return True
        return not self.required or self._known().get(token.hash) == token

    def _known(self) -> dict[str, Token]:
        return self._by_hash

    def _known_now(self) -> dict[str, Token]:
        """Like `_known`, including tokens that were created just now."""
        return self._by_hash


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
