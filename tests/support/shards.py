"""Two SQLite files, or two schemas of a PostgreSQL server, as one queue. Jobs without a tenant are
on one of them and keep their order."""

from __future__ import annotations

from pathlib import Path

from tenure.engines.sharded.members import members_of
from tenure.engines.sharded.placing import Placing
from tests.support import audit_postgres, postgres
from tests.support.audit import audit as audit_file


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/jobs-{{0..1}}.db?without_tenant=together"


def files_of(folder: Path) -> list[Path]:
    return [folder / "jobs-0.db", folder / "jobs-1.db"]


def file_of(folder: Path, tenant: str) -> Path:
    """The file that has the jobs of a tenant."""
    return files_of(folder)[shard_of(folder, tenant)]


def shard_of(folder: Path, tenant: str) -> int:
    members = members_of(url_of(folder))
    shard = Placing(list(members.urls), spread=members.spread).of_tenant(tenant)
    assert shard is not None
    return shard


def audit(folder: Path) -> list[str]:
    """What is wrong in either file."""
    return [wrong for path in files_of(folder) if path.exists() for wrong in audit_file(path)]


# On PostgreSQL ------------------------------------------------------------------------------------


def postgres_url_of(folder: Path) -> str:
    file = folder / "shards.toml"
    stores = [f'{one.name} = "{postgres.url_of(one)}"\n' for one in _stores_of(folder)]
    file.write_text(f'without_tenant = "together"\n[shards]\n{"".join(stores)}')
    return f"shards:///{file}"


def _stores_of(folder: Path) -> list[Path]:
    return [folder / "0", folder / "1"]


def audit_on_postgres(folder: Path) -> list[str]:
    return [
        wrong
        for one in _stores_of(folder)
        for wrong in audit_postgres.audit(postgres.shared_url(), postgres.schema_of(one))
    ]


def drop_on_postgres(folder: Path) -> None:
    for one in _stores_of(folder):
        postgres.give_back(one)
