"""Tests behind PgBouncer in transaction mode, which must be installed: `apt install pgbouncer`.

    python -m tests.support.pgbouncer [arguments of pytest; default: conformance on PostgreSQL]

Every connection of the tests goes through it, to few connections of the server, so that whatever
is left on one of them meets others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import psycopg

from tests.support.postgres import CARELESS, Server

PORT = 6432
SERVER_CONNECTIONS = 8
PATIENCE = 30.0
NOT_HEARD = "test_changes.py::test_what_another_handle_commits_is_heard"  # it needs LISTEN
ARGUMENTS = [
    *("tests/conformance", "-k", "postgres", "-n", "2"),
    *("--deselect", f"tests/conformance/{NOT_HEARD}[postgres]"),
]


def start(server: Server) -> tuple[subprocess.Popen[bytes], str]:
    """A bouncer before a server, and the URL that leads through it."""
    folder = server.folder / "bouncer"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "ini").write_text(
        f"""
        [databases]
        postgres = host={server.folder} dbname=postgres
        [pgbouncer]
        pool_mode = transaction
        default_pool_size = {SERVER_CONNECTIONS}
        max_client_conn = 1000
        auth_type = trust
        auth_file = {folder}/users
        listen_port = {PORT}
        unix_socket_dir = {folder}
        unix_socket_mode = 0777
        logfile = {folder}/log
        """.replace("        ", "")
    )
    as_user = ["-u", "nobody"] if os.geteuid() == 0 else []
    process = subprocess.Popen(["pgbouncer", "-q", *as_user, str(folder / "ini")])
    url = f"postgresql://postgres@/postgres?host={quote(str(folder), safe='')}&port={PORT}"
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "PgBouncer does not come up"
            time.sleep(0.05)
        else:
            return process, url


def main(arguments: list[str]) -> int:
    server = Server(**CARELESS)
    try:
        bouncer, url = start(server)
        try:
            return subprocess.run(
                [sys.executable, "-m", "pytest", *(arguments or ARGUMENTS)],
                cwd=Path(__file__).parents[2],
                env=os.environ | {"TENURE_TEST_PG": url},
                check=False,
            ).returncode
        finally:
            bouncer.terminate()
            bouncer.wait()
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
