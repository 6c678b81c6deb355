"""The Django app, `tenure.django` in INSTALLED_APPS."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate

from tenure.django.backend import TenureBackend
from tenure.django.framework import task_backends


class TenureConfig(AppConfig):
    """Adds the command `tenure_worker`, and creates Tenure's tables in `manage.py migrate`."""

    name = "tenure.django"
    label = "tenure"
    verbose_name = "Tenure"

    def ready(self) -> None:
        """Called by Django when all apps are loaded."""
        post_migrate.connect(make_tables, sender=self)


def make_tables(using: str, **_: Any) -> None:
    """Create the tables of backends that share the migrated database.

    They cannot be created later, inside a Django transaction, which would have to end first.
    """
    for alias in task_backends:
        backend = task_backends[alias]
        if isinstance(backend, TenureBackend):
            backend.make_tables_in(using)
