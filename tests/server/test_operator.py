"""Error groups and the audit log over HTTP: what each kind of token sees and leaves behind."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tenure import NewJob, Queue
from tenure.features.audit.routes import NOTES_PER_HOUR
from tenure.server.auth import Scope, Tokens
from tenure.testing import ManualClock
from tests.server.conftest import Serve, token


def fail(queue: Queue, name: str = "mail") -> None:
    queue.enqueue(name, kind="send", id=f"{name}-job")
    (job,) = queue.claim(name)
    queue.fail(job, ValueError("no user 17"), fatal=True)


def test_error_groups_are_listed_muted_and_unmuted(serve: Serve, queue: Queue) -> None:
    client = serve()
    fail(queue)
    (one,) = client.get("/v1/errors?queue=mail")["errors"]
    known = {key: one[key] for key in ("queue", "kind", "type", "message", "count", "dead")}
    assert known == {
        "queue": "mail", "kind": "send", "type": "ValueError", "message": "no user 17", "count": 1,
        "dead": 1,
    }  # fmt: skip
    assert one["sample"] == "mail-job"
    assert client.get("/v1/jobs/mail-job")["errors"][0]["group"] == one["group"]
    client.post(f"/v1/errors/{one['group']}/mute")
    assert client.get("/v1/errors")["errors"][0]["muted"] is True
    client.post(f"/v1/errors/{one['group']}/unmute")
    assert client.get("/v1/errors")["errors"][0]["muted"] is False


def test_a_token_sees_errors_of_its_queues_and_none_if_it_is_of_a_tenant(
    serve: Serve, queue: Queue
) -> None:
    client = serve(
        tokens=[
            token("reader", Scope.READ),
            token("mailer", Scope.READ, queues=("mail",)),
            token("two", Scope.READ, queues=("mail", "other")),
            token("tenant", Scope.READ, tenants=("acme",)),
        ]
    )
    fail(queue)
    fail(queue, "other")
    assert len(client.as_("reader").get("/v1/errors")["errors"]) == 2
    mailer = client.as_("mailer")
    assert [one["queue"] for one in mailer.get("/v1/errors")["errors"]] == ["mail"]
    assert mailer.ask("GET", "/v1/errors?queue=other").status == 404
    assert client.as_("two").ask("GET", "/v1/errors").status == 403
    assert len(client.as_("two").get("/v1/errors?queue=other")["errors"]) == 1
    assert client.as_("tenant").ask("GET", "/v1/errors").status == 403
    assert client.as_("reader").ask("POST", "/v1/errors/0a1b/mute").status == 403
    for name in ("mailer", "two", "tenant"):
        assert client.as_(name).ask("GET", "/v1/audit").status == 403


def changes(client: Any) -> list[tuple[str, str, str]]:
    entries = client.get("/v1/audit")["entries"]
    return [(one["by"], one["action"], one.get("reason", "")) for one in entries]


def test_what_an_admin_changes_is_noted_with_the_name_of_the_token(
    serve: Serve, queue: Queue
) -> None:
    client = serve(tokens=[token("ann", Scope.ADMIN), token("shop", Scope.PRODUCE)])
    ann, shop = client.as_("ann"), client.as_("shop")
    queue.enqueue("mail", id="a")
    queue.enqueue("mail", id="b")
    ann.post("/v1/queues/mail/pause", headers={"tenure-reason": "zu%20viele%20Fehler%20%E2%9C%93"})
    assert changes(ann) == [("ann", "pause", "zu viele Fehler ✓")]
    shop.post("/v1/jobs/a/cancel")  # a program at work, not an operator
    assert len(changes(ann)) == 1
    shop.post("/v1/jobs/b/cancel", headers={"tenure-reason": "a customer asked"})
    assert changes(ann)[0] == ("shop", "cancel", "a customer asked")


def test_a_client_cannot_sign_with_another_name(serve: Serve) -> None:
    client = serve(tokens=[token("ann", Scope.ADMIN)]).as_("ann")
    op = {"op": "Pause", "queue": "mail", "note": {"by": "ben", "reason": "why not"}}
    client.post("/v1/ops", {"ops": [op]})
    client.post("/v1/ops", {"ops": [op | {"op": "Resume"}], "key": "k"})
    assert {by for by, _, _ in changes(client)} == {"ann"}


def test_without_tokens_the_client_says_who_it_is(serve: Serve) -> None:
    client = serve()
    op = {"op": "Pause", "queue": "mail", "note": {"by": "ben@desk"}}
    client.post("/v1/ops", {"ops": [op]})
    assert changes(client) == [("ben@desk", "pause", "")]


def test_a_reason_that_is_too_long_is_rejected(serve: Serve) -> None:
    asked = serve().ask("POST", "/v1/queues/mail/pause", headers={"tenure-reason": "x" * 1_001})
    assert asked.status == 400
    assert asked.json["code"] == "invalid"


def test_a_token_that_is_not_an_admins_cannot_bury_the_log(serve: Serve, queue: Queue) -> None:
    """Not even if the file of tokens is read again meanwhile."""
    tokens = [token("ann", Scope.ADMIN), token("shop", Scope.PRODUCE)]
    client = serve(tokens=tokens)
    ann, shop = client.as_("ann"), client.as_("shop")
    ann.post("/v1/queues/mail/pause")
    queue.enqueue_many([NewJob(queue="mail", id=str(n)) for n in range(NOTES_PER_HOUR + 50)])
    batch = [
        {"op": "Cancel", "ids": [str(n)], "note": {"reason": "look"}}
        for n in range(NOTES_PER_HOUR + 50)
    ]
    shop.post("/v1/ops", {"ops": batch[:70]})
    client.service.tokens = Tokens([replace(one) for one in tokens])
    shop.post("/v1/ops", {"ops": batch[70:]})
    assert queue.stats("mail").cancelled == NOTES_PER_HOUR + 50
    entries = ann.get("/v1/audit?limit=1000")["entries"]
    actions = [one["action"] for one in entries if one["by"] == "shop"]
    assert sorted(actions) == ["cancel"] * NOTES_PER_HOUR + ["not_recorded"]
    assert entries[-1]["by"] == "ann"


def test_the_log_tells_that_changes_are_not_recorded_and_how_many(
    serve: Serve, queue: Queue, clock: ManualClock
) -> None:
    """Also if the token first uses its entries up with what changes nothing."""
    client = serve(tokens=[token("ann"), token("shop", Scope.PRODUCE)])
    ann, shop = client.as_("ann"), client.as_("shop")

    def cancel(*ids: str) -> None:
        noted = [{"op": "Cancel", "ids": [id], "note": {"reason": "look"}} for id in ids]
        shop.post("/v1/ops", {"ops": noted})

    def told() -> list[tuple[str, int | None]]:
        return [(one["action"], one.get("count")) for one in ann.get("/v1/audit")["entries"]]

    queue.enqueue_many([NewJob(queue="mail", id=str(n)) for n in range(9)])
    cancel(*["none"] * NOTES_PER_HOUR)
    assert told() == []
    cancel("none", "1", "2")
    cancel("none", "3")
    assert told() == [("not_recorded", None)]
    assert queue.stats("mail").cancelled == 3
    clock.advance(3_600)
    cancel("4")
    assert told()[0] in [("cancel", 1), ("not_recorded", 5)]
    assert sorted(told()[:2]) == [("cancel", 1), ("not_recorded", 5)]


def test_a_large_filter_in_a_note_is_rejected(serve: Serve, queue: Queue) -> None:
    shop = serve(tokens=[token("shop", Scope.PRODUCE)]).as_("shop")
    queue.enqueue("mail", id="a")
    op = {"op": "Cancel", "ids": ["a"], "note": {"filter": {"x": "y" * 100_000}}}
    asked = shop.ask("POST", "/v1/ops", {"ops": [op]})
    assert (asked.status, asked.json["code"]) == (400, "invalid")
    assert queue.stats("mail").ready == 1


def test_what_a_dialect_does_for_a_program_is_not_noted(
    serve: Serve, queue: Queue, clock: ManualClock
) -> None:
    tokens = [token("ann", Scope.ADMIN), token("shop", Scope.PRODUCE)]
    client = serve(["firecrawl"], tokens=tokens)
    job = {"id": "a", "data": 1, "priority": 1, "listenable": False}
    for _ in range(3):
        client.as_("shop").post("/queue/push", {"teamId": "t", "job": job, "timeout": 1})
        clock.advance(1)
    assert changes(client.as_("ann")) == []
