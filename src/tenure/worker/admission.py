"""Whether a service allows a worker to claim jobs: its token may be wrong, or revoked later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tenure.clock import Clock
from tenure.errors import Busy, NotAllowed, StoreError, Unauthorized
from tenure.settings import without_secrets
from tenure.worker.outage import FIRST_PAUSE, LONGEST_PAUSE, Outage

log = logging.getLogger("tenure.worker")

PATIENCE_SECONDS = 300.0  # for which a worker that was accepted before keeps trying
HINT = "set TENURE_TOKEN to a token of the service with the scope 'work', for the worker's queues"


class Admission:
    """Remembers whether claims are allowed, and decides when to give up."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = without_secrets(url)
        self._clock = clock
        self._was_accepted = False
        self._refused_at: float | None = None

    @property
    def is_refused(self) -> bool:
        return self._refused_at is not None

    async def prepare(
        self,
        first: Callable[[], Awaitable[None]],
        outage: Outage,
        is_stopping: Callable[[], bool],
    ) -> None:
        """Await what has to be done first. Tries again while a service is unavailable."""
        pause = FIRST_PAUSE
        while not is_stopping():
            try:
                await first()
            except Unauthorized as error:
                raise refusal(self._url, error) from None
            except (Busy, StoreError) as error:
                if not self._url.startswith("http"):
                    raise
                outage.goes_on("the worker could not start", error)
            else:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def accept(self) -> None:
        """A claim was allowed."""
        self._was_accepted = True
        if self._refused_at is not None:
            self._refused_at = None
            log.info("%s accepts this worker again", self._url)

    def refuse(self, error: NotAllowed) -> None:
        """A claim was not allowed. Returns if it makes sense to try again: a token that was
        accepted before may be restored. Raises the error otherwise."""
        now = self._clock.monotonic()
        if self._refused_at is None:
            self._refused_at = now
            if self._was_accepted:
                text = "%s no longer accepts this worker, trying again for %g s: %s"
                log.warning(text, self._url, PATIENCE_SECONDS, error)
        if not self._was_accepted or now - self._refused_at >= PATIENCE_SECONDS:
            raise refusal(self._url, error) from None


def refusal(url: str, error: NotAllowed) -> NotAllowed:
    """The error of a worker that ends because it is not allowed to work."""
    hint = "" if "TENURE_TOKEN" in error.message else f"; {HINT}"
    return type(error)(f"{without_secrets(url)} does not accept this worker: {error}{hint}")
