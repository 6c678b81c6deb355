"""Servers that speak PostgreSQL's protocol, but are not PostgreSQL."""

from __future__ import annotations

import os

import psycopg
import pytest

import tenure
from tenure import InvalidInput
from tenure.engines.postgres.server import is_postgresql
from tests.support import postgres

REAL = [
    "PostgreSQL 16.4 on x86_64-pc-linux-gnu, compiled by gcc (GCC) 12.2.0, 64-bit",
    "PostgreSQL 14.13 (Debian 14.13-1.pgdg120+1) on aarch64-unknown-linux-gnu, compiled by gcc",
    "PostgreSQL 18beta1 on x86_64-apple-darwin23, compiled by Apple clang version 15.0.0, 64-bit",
    "PostgreSQL 15.4 (EnterpriseDB Advanced Server 15.4.0) on x86_64-pc-linux-gnu, compiled by gcc",
]
OTHERS = {
    "CockroachDB": "CockroachDB CCL v23.1.0 (x86_64-pc-linux-gnu, built 2023/05/15, go1.19.4)",
    "YugabyteDB": "PostgreSQL 15.12-YB-2.25.2.0-b0 on x86_64-pc-linux-gnu, compiled by clang "
    "version 19.1.0, 64-bit",
    "YugabyteDB 2": "PostgreSQL 11.2-YB-2.21.1.0-b0 on x86_64-pc-linux-gnu, compiled by clang",
    "Aurora DSQL": "PostgreSQL 16",
    "Redshift": "PostgreSQL 8.0.2 on i686-pc-linux-gnu, compiled by GCC gcc (GCC) 3.4.2 20041017 "
    "(Red Hat 3.4.2-6.fc3), Redshift 1.0.77467",
}


@pytest.mark.parametrize("version", REAL)
def test_postgresql_is_recognized(version: str) -> None:
    assert is_postgresql(version)


@pytest.mark.parametrize("name", OTHERS)
def test_other_servers_are_recognized(name: str) -> None:
    assert not is_postgresql(OTHERS[name])


@pytest.mark.parametrize("name", OTHERS)
def test_a_server_that_is_not_postgresql_is_rejected_before_anything_is_created(name: str) -> None:
    url, fake, schema = postgres.shared_url(), f"fake_{os.getpid()}", f"never_{os.getpid()}"
    options = f"schema={schema}&options=-csearch_path%3D{fake},pg_catalog"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {fake}")
        try:
            connection.execute(
                f"CREATE FUNCTION {fake}.version() RETURNS text LANGUAGE sql AS "
                f"$$ SELECT '{OTHERS[name]}' $$"
            )
            with pytest.raises(InvalidInput, match="is not PostgreSQL") as met:
                tenure.connect(f"{url}{'&' if '?' in url else '?'}{options}")
            assert OTHERS[name] in str(met.value)
            query = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
            assert connection.execute(query, [schema]).fetchone() == (0,)
        finally:
            connection.execute(f"DROP SCHEMA {fake} CASCADE")
