"""manage.py tenure_worker: runs the tasks of a TenureBackend."""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.module_loading import autodiscover_modules

from tenure.cli.workers import run_until_signal
from tenure.django.backend import TenureBackend
from tenure.django.framework import InvalidTaskBackend, task_backends
from tenure.django.log_setup import log_to_stderr
from tenure.django.task_post import TaskPost
from tenure.errors import TenureError
from tenure.worker.worker import Worker

LOG_LEVELS = {0: logging.WARNING, 1: logging.INFO}  # by --verbosity; above: DEBUG


class Command(BaseCommand):
    """A worker. The first Ctrl-C or SIGTERM stops it gracefully, the second at once."""

    help = (
        "Runs Django tasks. The first Ctrl-C or SIGTERM stops the worker gracefully: it claims no "
        "more tasks, lets running ones finish within the grace time, and gives the rest back. The "
        "second one gives them back at once."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Called by Django."""
        parser.add_argument(
            "--backend", default="default", help="Alias of the backend (default: %(default)s)."
        )
        parser.add_argument(
            "--queues", help="Only work on these queues, in order of preference: high,low."
        )
        parser.add_argument(
            "--concurrency",
            type=int,
            default=10,
            help="How many tasks run at once (default: %(default)s).",
        )
        parser.add_argument(
            "--lease",
            type=float,
            default=30,
            help="Seconds until the tasks of a dead worker are taken over (default: %(default)s).",
        )
        parser.add_argument(
            "--grace",
            type=float,
            default=30,
            help="Seconds that running tasks get to finish when the worker is stopped "
            "(default: %(default)s).",
        )
        parser.add_argument("--burst", action="store_true", help="Exit when nothing is ready.")
        parser.add_argument("--max-jobs", type=int, help="Exit after this many tasks.")

    def handle(self, *_: Any, backend: str, verbosity: int, **options: Any) -> None:
        """Called by Django."""
        log_to_stderr(LOG_LEVELS.get(verbosity, logging.DEBUG))
        autodiscover_modules("tasks")  # report import errors now, not when a task runs
        try:
            run_until_signal(_runner(backend, **options))
        except TenureError as error:
            raise CommandError(str(error)) from error


def _runner(
    alias: str,
    *,
    queues: str | None,
    concurrency: int,
    lease: float,
    grace: float,
    burst: bool,
    max_jobs: int | None,
    **_: Any,
) -> Worker:
    backend = _backend(alias)
    post = TaskPost(backend, _queues(backend, queues), concurrency, in_order=queues is not None)
    return Worker(backend.queue, [post], lease=lease, grace=grace, burst=burst, max_jobs=max_jobs)


def _backend(alias: str) -> TenureBackend:
    try:
        backend = task_backends[alias]
    except InvalidTaskBackend as error:
        raise CommandError(str(error)) from error
    if not isinstance(backend, TenureBackend):
        kind = type(backend)
        raise CommandError(
            f"TASKS[{alias!r}] is a {kind.__module__}.{kind.__qualname__}, "
            "not a tenure.django.TenureBackend"
        )
    return backend


def _queues(backend: TenureBackend, given: str | None) -> list[str]:
    known: set[str] = backend.queues
    if given is None:
        if not known:
            raise CommandError("this backend accepts any queue: name some with --queues")
        return sorted(known)
    named = [name.strip() for name in given.split(",")]
    for name in named:
        if known and name not in known:
            there = ", ".join(sorted(known))
            raise CommandError(f"--queues: {name!r} is not in QUEUES, which has {there}")
    return named
