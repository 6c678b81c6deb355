"""A Django project with the dashboard below a path, whose visitors are all superusers."""

from __future__ import annotations

import os
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.urls import include, path


class Root:
    """The user of every request."""

    is_active = is_staff = is_superuser = is_authenticated = True

    def get_username(self) -> str:
        return "root"


def signed_in(get_response: Any) -> Any:
    """Middleware that signs everybody in."""

    def respond(request: Any) -> Any:
        async def auser() -> Root:
            return Root()

        request.auser = auser
        return get_response(request)

    return respond


settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    INSTALLED_APPS=["tenure.django"],
    LOGGING_CONFIG=None,
    MIDDLEWARE=[f"{__name__}.signed_in"],
    ROOT_URLCONF=__name__,
    TASKS={
        "default": {
            "BACKEND": "tenure.django.TenureBackend",
            "OPTIONS": {"url": os.environ["SITE_STORE"]},
        }
    },
    TENURE_DASHBOARD={"ENVIRONMENT": "mounted"},
)
django.setup()

urlpatterns = [path("ops/tenure/", include("tenure.django.urls"))]

app = get_asgi_application()
