"""Finding the official binding, its C library, and a cluster."""

from __future__ import annotations

import importlib
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tenure.errors import InvalidInput, StoreError
from tenure.settings import without_secrets

API_VERSION = 710
DEFAULT_DIRECTORY = ("tenure",)
AFTER_FORK = (
    "FoundationDB's client does not survive a fork: open the queue after forking, "
    "or start processes with spawn"
)


def load() -> Any:
    """Import the binding and select its API version."""
    try:
        fdb = importlib.import_module("fdb")
    except ImportError:
        raise StoreError(
            "fdb:// needs FoundationDB's Python binding: pip install 'tenure[fdb]'"
        ) from None
    chosen = getattr(fdb, "_version", None)  # by another part of the program; it cannot be changed
    if chosen is not None and chosen >= API_VERSION:
        return fdb
    try:
        fdb.api_version(API_VERSION)
    except Exception as error:  # the binding raises bare Exceptions
        raise StoreError(
            f"FoundationDB's C library could not be used ({error}): install the package "
            "foundationdb-clients of the release that your cluster runs, 7.1 or newer"
        ) from None
    return fdb


def parse(url: str) -> tuple[str | None, tuple[str, ...]]:
    """The cluster file (None for FDB_CLUSTER_FILE or the system's) and the directory."""
    parts = urlsplit(url)
    options = parse_qs(parts.query)
    if parts.netloc or not options.keys() <= {"directory"}:
        raise InvalidInput(
            "url",
            f"{without_secrets(url)!r}: use fdb:///path/to/fdb.cluster or fdb://, and "
            "?directory=a/b for a directory other than 'tenure'",
        )
    file = unquote(parts.path)
    path = tuple(name for name in options.get("directory", [""])[0].split("/") if name)
    return None if file in ("", "/") else file, path or DEFAULT_DIRECTORY


def open_database(fdb: Any, cluster_file: str | None) -> Any:
    """Open a database. Does not contact the cluster yet."""
    network = getattr(getattr(fdb, "impl", None), "_network_thread", None)
    if network is not None and not network.is_alive():
        raise StoreError(AFTER_FORK)  # the binding would wait for that thread forever
    try:
        return fdb.open(cluster_file)
    except fdb.FDBError as error:
        raise StoreError(
            f"the cluster file {cluster_file or '(the default)'} cannot be used: "
            f"{error.description} ({error.code})"
        ) from None
