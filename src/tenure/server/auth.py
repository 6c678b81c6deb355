"""Who asks, and what they may do."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from tenure.errors import InvalidInput, NotFound, Unauthorized
from tenure.job import check_label, check_name

PREFIX = "tnr_"


class Scope(StrEnum):
    """What a token can be good for."""

    PRODUCE = "produce"
    WORK = "work"
    READ = "read"
    ADMIN = "admin"  # all of it


class Token(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A token as it is stored: never itself, only its hash."""

    name: str
    hash: str
    scopes: tuple[Scope, ...]
    queues: tuple[str, ...] | None = None  # None: all
    tenants: tuple[str, ...] | None = None

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes


EVERYTHING = Token("(no tokens are set)", "", (Scope.ADMIN,))


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[Token] = []


def hash_of(secret: str) -> str:
    """A token has 256 random bits: a plain hash cannot be searched for."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Tokens:
    """The tokens that are known."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self._by_hash = {token.hash: token for token in tokens}

    def __bool__(self) -> bool:
        return bool(self._by_hash)

    def who(self, authorization: str | None) -> Token:
        """The token of an Authorization header; raises Unauthorized."""
        if not self._by_hash:
            return EVERYTHING
        if authorization is None:
            raise Unauthorized("a token is needed: Authorization: Bearer ...")
        kind, _, secret = authorization.partition(" ")
        found = None
        hashed = hash_of(secret.strip())
        for known, token in self._by_hash.items():  # all of them: time tells nothing
            if hmac.compare_digest(known, hashed):
                found = token
        if found is None or kind.lower() != "bearer":
            raise Unauthorized("this token is not known")
        return found


def read_tokens(path: Path) -> list[Token]:
    """The tokens of a file; raises InvalidInput."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).tokens
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidInput("tokens", f"{path} cannot be read: {error}") from None


def write_tokens(path: Path, tokens: list[Token]) -> None:
    """Replace the file in one step; only its owner may read it."""
    text = msgspec.json.format(msgspec.json.encode(_File(tokens)), indent=2)
    beside = path.with_name(f"{path.name}.new")
    beside.touch(0o600)
    with beside.open("wb") as file:
        file.write(text + b"\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def create_token(
    path: Path,
    name: str,
    scopes: Iterable[str],
    queues: Iterable[str] = (),
    tenants: Iterable[str] = (),
) -> str:
    """Add a token to a file; answers with the token, which is not kept anywhere."""
    tokens = read_tokens(path)
    if any(token.name == check_name("name", name) for token in tokens):
        raise InvalidInput("name", f"there is a token named {name!r} already")
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
    write_tokens(path, [*tokens, token])
    return secret


def revoke_token(path: Path, name: str) -> None:
    """Remove a token from a file."""
    tokens = read_tokens(path)
    left = [token for token in tokens if token.name != name]
    if len(left) == len(tokens):
        raise NotFound(f"there is no token named {name!r}")
    write_tokens(path, left)


def tokens_of(path: Path | None, environ: Mapping[str, str]) -> Tokens:
    """All tokens: of a file, and of the environment (TENURE_TOKEN, EDGE_API_TOKEN)."""
    tokens = [] if path is None else read_tokens(path)
    for name in ("TENURE_TOKEN", "EDGE_API_TOKEN"):
        if environ.get(name):
            tokens.append(Token(name, hash_of(environ[name]), (Scope.ADMIN,)))
    return Tokens(tokens)
