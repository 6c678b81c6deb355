"""What the service serves for the dashboard: files, what a token may do, the overview, the search,
and that what is hidden stays hidden."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

import tenure
from tenure import NewJob, Queue
from tenure.errors import InvalidInput
from tenure.queue import store_of
from tenure.server import asgi
from tenure.server.about import About
from tenure.server.auth import Scope
from tenure.server.static_files import HEADERS, files
from tenure.server.token_file import create_token
from tenure.testing import ManualClock
from tests.server.conftest import Client, Serve, token

FOLDER = Path(tenure.__file__).parent / "server" / "dashboard"
MOST_BYTES = 150_000


# Files --------------------------------------------------------------------------------------------


def test_the_page_allows_nothing_from_elsewhere(client: Client) -> None:
    asked = client.ask("GET", "/")
    policy = asked.headers["content-security-policy"]
    assert policy == (
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    )
    assert asked.headers["x-content-type-options"] == "nosniff"
    assert asked.headers["cache-control"] == "no-cache"
    text = asked.content.decode()
    assert "CONTENT_HASH" not in text
    assert not re.search(r"<style|style=|<script(?! type=\"module\" src=)|\son\w+=|https?:", text)


def test_files_are_kept_forever_under_the_hash_of_their_contents(client: Client) -> None:
    text = client.ask("GET", "/").content.decode()
    names = re.findall(r'(?:src|href)="(static/[^"]+)"', text)
    assert len(names) == 3
    for name in names:
        asked = client.ask("GET", f"/{name}")
        assert asked.status == 200
        assert asked.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert asked.headers["content-security-policy"] == HEADERS["content-security-policy"]
        again = client.ask("GET", f"/{name}", headers={"if-none-match": asked.headers["etag"]})
        assert (again.status, again.content) == (304, b"")


def test_a_page_of_another_version_gets_the_files_but_does_not_keep_them(client: Client) -> None:
    asked = client.ask("GET", "/static/0123456789abcdef/app.js")
    assert asked.status == 200
    assert asked.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("name", ["nothing.js", "..%2F__init__.py", "__init__.py", "a.html"])
def test_no_other_file_is_served(client: Client, name: str) -> None:
    assert client.ask("GET", f"/static/{files().hash}/{name}").status == 404


def test_every_module_is_there_and_all_are_small() -> None:
    found = {path.name: path.read_text("utf-8") for path in FOLDER.iterdir()}
    assert sum(len(text.encode()) for text in found.values()) < MOST_BYTES
    for name, text in found.items():
        if name.endswith(".js"):
            imported = re.findall(r'^import .*from "([^"]+)";', text, re.MULTILINE)
            assert all(one.removeprefix("./") in found for one in imported), (name, imported)
            assert "innerHTML" not in text
            assert ".style" not in text
            assert "eval(" not in text


def test_the_wheel_holds_the_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=Path(tenure.__file__).parents[2], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for path in FOLDER.iterdir():
        assert f"tenure/server/dashboard/{path.name}" in names
    assert all(name.startswith(("tenure/", "tenure-")) for name in names)


# Who is here --------------------------------------------------------------------------------------


def test_a_token_is_told_what_it_may_do(serve: Serve) -> None:
    about = About("staging", "Maintenance at 22:00")
    tokens = [token("all"), token("some", Scope.READ, queues=("mail",), tenants=("acme",))]
    client = serve([], tokens, about=about)
    me = client.as_("all").get("/v1/me")
    assert me["scopes"] == ["produce", "work", "read", "maintain", "admin"]
    assert (me["name"], me["queues"], me["tenants"]) == ("all", None, None)
    assert (me["environment"], me["banner"]) == ("staging", "Maintenance at 22:00")
    me = client.as_("some").get("/v1/me")
    assert (me["scopes"], me["queues"], me["tenants"]) == (["read"], ["mail"], ["acme"])


@pytest.mark.parametrize("about", [{"environment": "x" * 41}, {"banner": "two\nlines"}])
def test_what_is_shown_on_every_page_is_short(about: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        About(**about)


# The overview -------------------------------------------------------------------------------------


def test_the_overview_has_each_queue_and_what_needs_attention(
    client: Client, queue: Queue, clock: ManualClock
) -> None:
    queue.limits.set("full", concurrency=1)
    queue.enqueue_many([NewJob(queue=name) for name in ("full", "full", "late", "paused", "new")])
    queue.pause("paused")
    queue.claim("full", lease=1000)
    queue.enqueue("sick", max_attempts=1)
    queue.fail(queue.claim("sick")[0], "boom")
    clock.advance(120)
    queue.enqueue("fresh")
    client.put("/v1/workers/w-1", {"queues": ["late", "sick"]})
    found = client.get("/v1/overview")
    rows = {row["queue"]: row for row in found["queues"]}
    assert list(rows) == sorted(rows)
    assert (rows["full"]["ready"], rows["full"]["leased"], rows["full"]["limit"]) == (1, 1, 1)
    assert rows["late"]["oldest_ready_at"] == found["now"] - 120_000
    assert rows["sick"]["oldest_ready_at"] is None
    assert [rows[name]["workers"] for name in ("late", "new")] == [1, 0]
    assert len(rows["sick"]["rates"]) == len(rows["sick"]["failures"]) == 30
    assert (sum(rows["sick"]["failures"]), rows["sick"]["died"]) == (1, 1)
    assert rows["full"]["wait_p99"] is not None
    told = {one["queue"]: one["text"] for one in found["attention"]}
    assert told == {
        "late": "1 job ready, the oldest for 2 min; none is running",
        "new": "1 job ready, the oldest for 2 min; no live worker listens to it",
        "sick": "1 job dead; 1 died in the last 30 min. Most often boom",
        "full": "1 job ready, the oldest for 2 min; its limit of 1 is used up",
        "paused": "1 job ready, the oldest for 2 min. "
        "The queue 'paused' was paused at 2023-11-14 22:13:20 UTC.",
    }
    assert [one["level"] for one in found["attention"]] == ["bad", "bad", "bad", "odd", "odd"]


def test_an_overview_serves_all_who_ask_at_the_same_time(client: Client, queue: Queue) -> None:
    queue.enqueue("mail")
    asked: list[Any] = []
    inner = store_of(client.service.queue).do

    def do(wanted: Any) -> Any:
        asked.append(type(wanted).__name__)
        return inner(wanted)

    store_of(client.service.queue).do = do  # type: ignore[method-assign]

    async def ten() -> list[httpx.Response]:
        transport = httpx.ASGITransport(client.service)
        async with httpx.AsyncClient(transport=transport, base_url="http://tenure") as http:
            return await asyncio.gather(*(http.get("/v1/overview") for _ in range(10)))

    found = client.run(ten())
    assert {one.status_code for one in found} == {200}
    assert asked == ["Together", "Together"]  # what queues are, and how long the ready ones wait


def test_an_overview_is_of_what_a_token_may_see(serve: Serve, queue: Queue) -> None:
    queue.enqueue("mail", tenant="acme")
    queue.enqueue("mail", tenant="bolt")
    queue.enqueue("secret", tenant="bolt")
    client = serve([], [token("all"), token("acme", Scope.READ, tenants=("acme",))])
    assert [row["ready"] for row in client.as_("all").get("/v1/overview")["queues"]] == [2, 1]
    (row,) = client.as_("acme").get("/v1/overview")["queues"]
    assert (row["queue"], row["ready"], row["oldest_ready_at"]) == ("mail", 1, None)
    assert row["workers"] is None  # it sees only those that serve nobody else


# The search ---------------------------------------------------------------------------------------


def test_jobs_queues_and_tenants_are_found(serve: Serve, queue: Queue) -> None:
    queue.enqueue("Mail", tenant="acme", id="mail-1")
    queue.enqueue("reports", tenant="mail", id="mail-2")
    client = serve([], [token("all"), token("acme", Scope.READ, tenants=("acme",))])
    found = client.as_("all").get("/v1/search?q=mail")
    assert found["jobs"] == ["mail-1", "mail-2"]
    assert found["queues"] == ["Mail"]
    assert found["tenants"] == [{"queue": "reports", "tenant": "mail"}]
    bound = client.as_("acme")
    assert bound.get("/v1/search?q=mail-1")["jobs"] == ["mail-1"]
    assert not any(bound.get("/v1/search?q=mail-2").values())
    assert bound.ask("GET", "/v1/search?q=").status == 400


def test_unique_keys_groups_and_kinds_are_found(serve: Serve, queue: Queue) -> None:
    queue.enqueue("mail", tenant="acme", id="1", unique_key="order-7", kind="send")
    queue.enqueue("ship", tenant="bolt", id="2", unique_key="order-7", group="north", kind="send")
    client = serve([], [token("all"), token("acme", Scope.READ, tenants=("acme",))])
    everybody, bound = client.as_("all"), client.as_("acme")
    assert everybody.get("/v1/search?q=order-7")["keys"] == ["1", "2"]
    assert bound.get("/v1/search?q=order-7")["keys"] == ["1"]
    assert everybody.get("/v1/search?q=north")["groups"] == [{"queue": "ship", "group": "north"}]
    assert not any(bound.get("/v1/search?q=north").values())
    kinds = [{"queue": "mail", "kind": "send"}, {"queue": "ship", "kind": "send"}]
    assert everybody.get("/v1/search?q=send")["kinds"] == kinds
    assert bound.get("/v1/search?q=send")["kinds"] == kinds[:1]


# Tenants and related jobs -------------------------------------------------------------------------


def test_the_tenants_of_a_queue_say_how_long_they_wait_if_asked(
    serve: Serve, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("mail", tenant="acme")
    queue.enqueue("mail", tenant="bolt")
    clock.advance(5)
    client = serve([], [token("all"), token("acme", Scope.READ, tenants=("acme",))])
    (acme, bolt) = client.as_("all").get("/v1/queues/mail/tenants?waits=true")
    assert (acme["wait_ms"], bolt["wait_ms"], bolt["dead"]) == (5_000, 5_000, 0)
    (acme,) = client.as_("acme").get("/v1/queues/mail/tenants?waits=true")
    assert acme["wait_ms"] == 5_000
    assert client.as_("all").get("/v1/queues/mail/tenants")[0]["wait_ms"] is None
    query = {"query": "LongestWaits", "queue": "mail", "tenants": ["acme", "bolt"]}
    found = client.as_("acme").post("/v1/query", {"query": query})["found"]
    assert found == [{"tenant": "acme", "wait_ms": 5_000}]


def test_a_job_tells_which_jobs_it_has_to_do_with(serve: Serve, queue: Queue) -> None:
    queue.enqueue("mail", tenant="acme", id="a")
    queue.enqueue("mail", {"secret": 1}, tenant="acme", id="b", after=["a"])
    queue.enqueue("mail", tenant="bolt", id="c", after=["b"])
    client = serve([], [token("all"), token("acme", Scope.READ, tenants=("acme",))])
    found = client.as_("all").get("/v1/jobs/b/related")
    assert [one["id"] for one in found["after"]] == ["a"]
    assert [(one["id"], one["state"]) for one in found["before"]] == [("c", "waiting")]
    assert not found["more"]
    found = client.as_("acme").get("/v1/jobs/b/related?limit=5")
    assert ([one["id"] for one in found["after"]], found["before"]) == (["a"], [])
    assert client.as_("acme").ask("GET", "/v1/jobs/c/related").status == 404


# Redaction ----------------------------------------------------------------------------------------

SECRET = {"to": "ann", "Password": "hunter2", "cards": [{"number": 1, "password": {"a": 1}}]}
HIDDEN = {
    "to": "ann",
    "Password": "[redacted]",
    "cards": [{"number": 1, "password": "[redacted]"}],
}


def test_named_fields_are_hidden_from_all_who_read(serve: Serve, queue: Queue) -> None:
    client = serve(redact=["password"])
    made = client.post("/v1/jobs", {"queue": "mail", "payload": SECRET, "id": "a"})
    assert made["payload"] == SECRET  # the client has just sent it
    again = {"queue": "mail", "id": "a"}
    assert client.post("/v1/jobs?if_exists=skip", again)["payload"] == HIDDEN
    queue.schedules.put("nightly", "0 3 * * *", NewJob(queue="mail", payload=SECRET))
    for path in ("/v1/jobs/a", "/v1/jobs/a/wait?timeout=0"):
        assert client.get(path)["payload"] == HIDDEN
    assert client.get("/v1/jobs?queue=mail")["jobs"][0]["payload"] == HIDDEN
    assert client.get("/v1/schedules")[0]["job"]["payload"] == HIDDEN
    for query in ({"query": "GetJob", "id": "a"}, {"query": "ListJobs"}, {"query": "GetTimetable"}):
        asked = client.ask("POST", "/v1/query", {"query": query})
        assert b"hunter2" not in asked.content
        assert b"[redacted]" in asked.content
    (job,) = client.post("/v1/claim", {"queues": ["mail"]})["jobs"]
    assert job["payload"] == SECRET  # a worker needs it
    lease = {"id": "a", "token": job["token"], "result": {"password": "x", "ok": True}}
    client.post("/v1/ack", {"jobs": [lease]})
    assert client.get("/v1/jobs/a")["result"] == {"password": "[redacted]", "ok": True}
    assert queue.get("a").payload == SECRET


def test_a_name_that_is_written_with_escapes_is_hidden(serve: Serve, queue: Queue) -> None:
    client = serve(redact=["password"])
    body = b'{"queue": "mail", "id": "a", "payload": {"p\\u0061ssword": "hunter2"}}'
    client.ask("POST", "/v1/jobs", content=body)
    assert client.get("/v1/jobs/a")["payload"] == {"password": "[redacted]"}


def test_a_schedule_is_paused_and_run_with_what_is_hidden(serve: Serve, queue: Queue) -> None:
    client = serve(redact=["password"])
    queue.schedules.put("nightly", "0 3 * * *", NewJob(queue="mail", payload=SECRET))
    client.post("/v1/schedules/nightly/pause")
    (schedule,) = queue.schedules.list()
    assert schedule.disabled
    made = client.post("/v1/schedules/nightly/run-now")
    assert queue.get(made["id"]).payload == SECRET
    client.post("/v1/schedules/nightly/resume")
    (schedule,) = queue.schedules.list()
    assert not schedule.disabled
    assert b"hunter2" in bytes(schedule.job.payload)
    assert client.ask("POST", "/v1/schedules/unknown/pause").status == 404


# Below a path -------------------------------------------------------------------------------------


def ask(app: Any, path: str, **options: Any) -> httpx.Response:
    async def asked() -> httpx.Response:
        client = options.pop("client", ("127.0.0.1", 1))
        root = options.pop("root", "")
        transport = httpx.ASGITransport(app, client=client, root_path=root)
        base = options.pop("base", "http://localhost")
        async with httpx.AsyncClient(transport=transport, base_url=base) as http:
            return await http.get(path, **options)

    return asyncio.run(asked())


@pytest.mark.parametrize("root", ["/ops", "/ops/", "/a/b"])
def test_the_service_is_found_below_the_path_that_it_is_mounted_at(root: str) -> None:
    with tenure.connect("memory://") as queue:
        queue.enqueue("a/b", id="x/y z")
        app = asgi(queue, open_on_loopback=True)
        prefix = root.rstrip("/")
        assert ask(app, f"{prefix}/", root=root).text.startswith("<!doctype html>")
        assert ask(app, f"{prefix}/v1/jobs/x%2Fy%20z", root=root).json()["id"] == "x/y z"
        assert ask(app, f"{prefix}/v1/queues/a%2Fb", root=root).json()["ready"] == 1
        assert ask(app, "/v1/me", root=root).status_code == 200  # a framework removed the path
        assert ask(app, f"{prefix}x/v1/me", root=root).status_code == 404
        app.service().close()


def test_without_tokens_nobody_is_served(tmp_path: Path) -> None:
    """Behind a proxy, all clients seem to be on this machine."""
    with tenure.connect("memory://") as queue:
        answer = ask(asgi(queue), "/v1/me")
        assert answer.status_code == 403
        assert "tenure token create" in answer.text


def test_on_request_only_this_machine_is_served(tmp_path: Path) -> None:
    with tenure.connect("memory://") as queue:
        app = asgi(queue, open_on_loopback=True)
        assert ask(app, "/v1/me").status_code == 200
        assert ask(app, "/v1/me", client=("10.0.0.7", 1)).status_code == 403
        assert ask(app, "/", client=("10.0.0.7", 1)).status_code == 403
        assert ask(app, "/v1/me", base="http://queue.example").status_code == 421
        app.service().close()


def test_with_tokens_others_are_served(tmp_path: Path) -> None:
    secret = create_token(tmp_path / "tokens.json", "ann", ["read"])
    app = asgi(f"sqlite:///{tmp_path}/jobs.db", tokens=tmp_path / "tokens.json")
    there = {"client": ("10.0.0.7", 1), "base": "http://queue.example"}
    assert ask(app, "/v1/me", **there).status_code == 401
    headers = {"authorization": f"Bearer {secret}"}
    assert ask(app, "/v1/me", headers=headers, **there).json()["name"] == "ann"
    app.service().close()
    app.service().queue.close()


def test_what_operators_see_and_do_hides_named_fields(serve: Serve, queue: Queue) -> None:
    client = serve(redact=["password"])
    queue.enqueue("mail", SECRET, id="a", delay=60)
    cancel = {"action": "cancel", "filter": {"queue": "mail"}, "dry_run": True}
    changed = client.ask("PATCH", "/v1/jobs/a", {"payload": {"password": "hunter2"}})
    asked = [
        changed,
        client.ask("POST", "/v1/bulk", cancel),
        client.ask("GET", "/v1/jobs/a/why"),
        client.ask("GET", "/v1/jobs/a/history"),
        client.ask("GET", "/v1/audit"),
        client.ask("GET", "/v1/jobs?summary=true&queue=mail"),
        client.ask("GET", "/v1/search?q=a"),
    ]
    assert [one.status for one in asked] == [200] * len(asked), asked
    assert not [one for one in asked if b"hunter2" in one.content]
    assert queue.get("a").payload == {"password": "hunter2"}
    queue.cancel("a")
    made = client.post("/v1/jobs/a/edit-and-replay", {"priority": 3})
    assert queue.get(made["id"]).payload == {"password": "hunter2"}
