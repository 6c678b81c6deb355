"""Which stores a URL names: `sqlite:///jobs-{0..3}.db`, or a file with the URLs of all shards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from tenure.errors import InvalidInput
from tenure.settings import without_secrets

MAX_SHARDS = 16  # a cursor has the place on each, and is bounded
SCHEME = "shards"
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_OPTION = "without_tenant"
WithoutTenant = Literal["spread", "together"]


class Members(NamedTuple):
    """The shards by name, and where jobs without a tenant go: to all shards, or to one of them."""

    urls: dict[str, str]
    spread: bool = True


class _File(msgspec.Struct, forbid_unknown_fields=True):
    shards: dict[str, str]
    without_tenant: WithoutTenant = "spread"


def is_sharded(url: str) -> bool:
    """Whether a URL names several stores."""
    return urlsplit(url).scheme == SCHEME or _RANGE.search(url) is not None


def members_of(url: str) -> Members:
    """The shards that a URL names. Raises InvalidInput."""
    in_file = urlsplit(url).scheme == SCHEME
    members = _from_file(_path_of(url)) if in_file else _from_range(url)
    _check(members)
    return members


def _from_range(url: str) -> Members:
    url, spread = _option(url)
    if len(_RANGE.findall(url)) != 1:
        raise InvalidInput("url", f"{without_secrets(url)!r} must have one range like {{0..3}}")
    first, last = (int(number) for number in _RANGE.findall(url)[0])
    if not 0 <= last - first < MAX_SHARDS:
        raise InvalidInput("url", f"{{{first}..{last}}} must be of 1 to {MAX_SHARDS} shards")
    names = map(str, range(first, last + 1))
    return Members({name: _RANGE.sub(name, url) for name in names}, spread)


def _option(url: str) -> tuple[str, bool]:
    """The URL without the option of this engine, and what the option says."""
    base, _, query = url.partition("?")
    options = query.split("&") if query else []
    mine = [one.partition("=")[2] for one in options if one.partition("=")[0] == _OPTION]
    if not mine:
        return url, True
    if mine[-1] not in ("spread", "together"):
        raise InvalidInput("url", f"{_OPTION} must be spread or together, not {mine[-1]!r}")
    rest = "&".join(one for one in options if one.partition("=")[0] != _OPTION)
    return f"{base}?{rest}" if rest else base, mine[-1] == "spread"


def _path_of(url: str) -> Path:
    prefix = f"{SCHEME}:///"
    name = unquote(url[len(prefix) :])
    if not url.startswith(prefix) or not name or "\0" in name:
        raise InvalidInput(
            "url", f"{url!r} must be shards:///shards.toml, or shards:////etc/shards.toml"
        )
    return Path(name).absolute()


def _from_file(path: Path) -> Members:
    import tomllib  # seldom needed

    try:
        said: Any = tomllib.loads(path.read_text())
        file = msgspec.convert(said, _File)
    except OSError as error:
        raise InvalidInput("url", f"{path} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InvalidInput("url", f"{path}: {error}") from None
    return Members(file.shards, file.without_tenant == "spread")


def _check(members: Members) -> None:
    if not 1 <= len(members.urls) <= MAX_SHARDS:
        raise InvalidInput("shards", f"{len(members.urls)} shards; must be 1 to {MAX_SHARDS}")
    for name, url in members.urls.items():
        if not _NAME.fullmatch(name):
            raise InvalidInput("shards", f"{name!r} must be 1 to 40 letters, digits, '_', '-', '.'")
        if is_sharded(url) or urlsplit(url).scheme in ("memory", "fdb", "http", "https"):
            raise InvalidInput("shards", f"{name}: {without_secrets(url)!r} cannot be a shard")
    if len(set(members.urls.values())) < len(members.urls):
        raise InvalidInput("shards", "two shards have the same URL")


def both(old: Members, new: Members) -> Members:
    """The shards of two URLs, of which the second is to take the place of the first. Raises
    InvalidInput."""
    for name in old.urls.keys() & new.urls.keys():
        if old.urls[name] != new.urls[name]:
            raise InvalidInput(
                "shards",
                f"shard {name!r} is {without_secrets(old.urls[name])} in one URL and "
                f"{without_secrets(new.urls[name])} in the other: shards keep their names; to "
                "change all stores, use `tenure copy`",
            )
    if old.spread != new.spread:
        raise InvalidInput("shards", f"{_OPTION} must be the same in both URLs")
    members = Members(old.urls | new.urls, old.spread)
    _check(members)
    return members
