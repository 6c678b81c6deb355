"""What tests do with the project: change its settings, run its worker, watch its signals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.test.utils import override_settings

from tenure.django import TenureBackend
from tenure.django.framework import (
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from tenure.django.task_post import TaskPost
from tenure.queue import Queue
from tenure.worker.worker import Worker

SIGNALS = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}


class Project:
    """The project of one test."""

    def backend(self, alias: str = "default") -> TenureBackend:
        backend = task_backends[alias]
        assert isinstance(backend, TenureBackend)
        return backend

    @property
    def queue(self) -> Queue:
        """The store of the default backend."""
        return self.backend().queue

    def work(
        self, alias: str = "default", *, queues: list[str] | None = None, **options: Any
    ) -> int:
        """Run a worker until nothing is ready; answers with how many jobs it handled."""
        return asyncio.run(self.awork(alias, queues=queues, **options))

    async def awork(
        self, alias: str = "default", *, queues: list[str] | None = None, **options: Any
    ) -> int:
        backend = self.backend(alias)
        concurrency = options.pop("concurrency", 4)
        post = TaskPost(backend, queues or sorted(backend.queues), concurrency)
        options = {"burst": True, "schedule": False, "name": "worker-1", **options}
        worker = Worker(backend.queue, [post], **options)
        await worker.run()
        return worker.handled

    @contextmanager
    def options(self, **changes: Any) -> Iterator[None]:
        """Other OPTIONS of the default backend. The store is another handle from here on."""
        default = settings.TASKS["default"]
        changed = {**default, "OPTIONS": {**default["OPTIONS"], **changes}}
        with override_settings(TASKS={**settings.TASKS, "default": changed}):
            yield

    @contextmanager
    def heard(self, of: type = TenureBackend) -> Iterator[list[tuple[str, str]]]:
        """The signals that are sent meanwhile, and the status that each came with."""
        found: list[tuple[str, str]] = []

        def receiver(name: str) -> Any:
            def receive(sender: type, task_result: Any, **_: Any) -> None:
                assert sender is of
                found.append((name, str(task_result.status)))

            return receive

        receivers = {name: receiver(name) for name in SIGNALS}
        for name, signal in SIGNALS.items():
            signal.connect(receivers[name])
        try:
            yield found
        finally:
            for name, signal in SIGNALS.items():
                signal.disconnect(receivers[name])
