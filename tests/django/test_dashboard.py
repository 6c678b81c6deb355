"""The dashboard below a path of a Django project."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.test.utils import override_settings
from django.urls import include, path

from tests.django.project import Project

urlpatterns = [path("ops/tenure/", include("tenure.django.urls"))]


class User:
    """A user of Django, without a database."""

    is_active = True

    def __init__(self, name: str, *, staff: bool = False, superuser: bool = False) -> None:
        self.name = name
        self.is_staff, self.is_superuser = staff, superuser
        self.is_authenticated = bool(name)

    def get_username(self) -> str:
        return self.name


ROOT = User("root", staff=True, superuser=True)
STAFF = User("ann", staff=True)
CUSTOMER = User("eve")
NOBODY = User("")


class Someone:
    """A middleware that signs a user in."""

    user = NOBODY
    sync_capable, async_capable = True, False

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        async def auser() -> User:
            return Someone.user

        request.auser = auser
        return self.get_response(request)


@pytest.fixture
def site(project: Project) -> Iterator[Client]:
    with override_settings(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["shop.example"],
        MIDDLEWARE=[f"{__name__}.Someone"],
        TENURE_DASHBOARD={"ENVIRONMENT": "shop", "REDACT": ["password"]},
    ):
        yield Client(headers={"host": "shop.example"})
    Someone.user = NOBODY


def test_the_page_and_its_files_are_served_below_the_path(site: Client) -> None:
    Someone.user = STAFF
    page = site.get("/ops/tenure/")
    assert page.status_code == 200
    assert page["content-security-policy"].startswith("default-src 'self';")
    text = page.content.decode()
    name = text.split('src="')[1].split('"')[0]
    assert name.startswith("static/")
    file = site.get(f"/ops/tenure/{name}")
    assert file.status_code == 200
    assert file["content-type"].startswith("text/javascript")
    assert "immutable" in file["cache-control"]


def test_staff_may_read_and_superusers_may_change(site: Client, project: Project) -> None:
    project.queue.enqueue("mail", {"to": "ann", "password": "hunter2"}, id="a/b c")
    Someone.user = STAFF
    me = site.get("/ops/tenure/v1/me").json()
    assert (me["name"], me["scopes"], me["environment"]) == ("ann", ["read"], "shop")
    job = site.get("/ops/tenure/v1/queues/mail").json()
    assert job["ready"] == 1
    assert site.post("/ops/tenure/v1/queues/mail/pause").status_code == 403
    Someone.user = ROOT
    origin = {"origin": "http://shop.example", "sec-fetch-site": "same-origin"}
    asked = site.post(
        "/ops/tenure/v1/queues/mail/pause", {}, headers=origin, content_type="application/json"
    )
    assert asked.status_code == 200
    assert project.queue.stats("mail").queues["mail"].paused


def test_an_encoded_slash_is_part_of_a_name(site: Client, project: Project) -> None:
    project.queue.enqueue("mail", {"password": "hunter2"}, id="a/b c")
    Someone.user = STAFF
    url = f"/ops/tenure/v1/jobs/{quote('a/b c', safe='')}"
    found = site.get(url, RAW_URI=url)
    assert found.json()["id"] == "a/b c"
    assert found.json()["payload"] == {"password": "[redacted]"}


def admin(request: HttpRequest) -> HttpResponse:
    """Stands for the page of Django's admin site."""
    return HttpResponse()


class WithAdmin:
    """URLs of a project with Django's admin site."""

    urlpatterns: ClassVar = [
        *urlpatterns,
        path("admin/", include(([path("login/", admin, name="login")], "admin"))),
    ]


def test_strangers_sign_in_at_the_admin_site_unless_the_project_names_another_page(
    site: Client,
) -> None:
    assert site.get("/ops/tenure/")["location"].startswith("/accounts/login/?next=")
    with override_settings(ROOT_URLCONF=WithAdmin):
        assert site.get("/ops/tenure/")["location"] == "/admin/login/?next=/ops/tenure/"
        with override_settings(LOGIN_URL="/accounts/login/"):  # the default, but meant
            assert site.get("/ops/tenure/")["location"] == "/accounts/login/?next=/ops/tenure/"
        with override_settings(LOGIN_URL="/sign-in/"):
            assert site.get("/ops/tenure/")["location"] == "/sign-in/?next=/ops/tenure/"


def test_others_see_nothing(site: Client) -> None:
    for user, path_, status in (
        (NOBODY, "", 302),
        (NOBODY, "v1/overview", 403),
        (CUSTOMER, "", 403),
        (CUSTOMER, "v1/overview", 403),
    ):
        Someone.user = user
        headers = {"x-tenure-user": "root", "x-tenure-may-change": "yes"}
        assert site.get(f"/ops/tenure/{path_}", headers=headers).status_code == status
    Someone.user = STAFF
    headers = {"x-tenure-user": "root", "x-tenure-may-change": "yes"}
    assert site.get("/ops/tenure/v1/me", headers=headers).json()["name"] == "ann"


def test_a_page_of_another_site_changes_nothing(site: Client, project: Project) -> None:
    project.queue.enqueue("mail")
    Someone.user = ROOT
    for forged in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        asked = site.post("/ops/tenure/v1/queues/mail/pause", headers=forged)
        assert asked.status_code == 403
    assert not project.queue.stats("mail").queues["mail"].paused


def test_long_polls_do_not_occupy_a_worker_of_django(site: Client) -> None:
    Someone.user = STAFF
    asked = site.get("/ops/tenure/v1/changes?wait=60&since=x")
    assert (asked.status_code, asked.json()["code"]) == (404, "no_such_route")


def test_names_in_any_script_are_told_apart(site: Client, project: Project) -> None:
    project.queue.enqueue("mail")
    for name, action in (("Жанна", "pause"), ("Žofia", "resume"), ("a%20b", "pause")):
        Someone.user = User(name, staff=True, superuser=True)
        assert site.get("/ops/tenure/v1/me").json()["name"] == name
        asked = site.post(
            f"/ops/tenure/v1/queues/mail/{action}", "{}", content_type="application/json"
        )
        assert asked.status_code == 200
    assert [one.by for one in project.queue.audit().entries] == ["a%20b", "Žofia", "Жанна"]
