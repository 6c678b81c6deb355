"""Answers that may come later.

The simulation knows an answer at once, but gives it out as a cluster would: a delay that was asked
for is spent on the clock when somebody waits, and an answer that nobody has looked at is lost with
the transaction that asked. On a cluster the second is a race that the program loses nearly always.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tenure.clock import Clock
from tests.fdb_sim.errors import FUTURE_CANCELLED, FDBError

T = TypeVar("T")

_CANCEL_S = 0.001  # between two calls for futures that were cancelled


class Scene:
    """What all futures of a cluster share."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.network = Network()
        self._kept: dict[int, Future[Any]] = {}

    def keep(self, future: Future[Any]) -> None:
        """Somebody is to be called: hold the future though nobody else does."""
        self._kept[id(future)] = future

    def drop(self, future: Future[Any]) -> None:
        self._kept.pop(id(future), None)


class Network:
    """The thread of a client that calls back for futures that were cancelled: later, when `cancel`
    has returned, as the real client does. It ends when there is nobody to call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], None]] = deque()
        self.busy = False

    def later(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)
            if not self.busy:
                self.busy = True
                threading.Thread(target=self._work, name="fdb-sim", daemon=True).start()

    def _work(self) -> None:
        while True:
            time.sleep(_CANCEL_S)
            with self._lock:
                if not self._calls:
                    self.busy = False
                    return
                call = self._calls.popleft()
            call()


class Life:
    """Whether the transaction that asked is still there to be answered."""

    __slots__ = ("error", "settled")

    def __init__(self) -> None:
        self.error: int | None = None
        self.settled = False  # its commit was answered, and all that was asked before


class Future(Generic[T]):
    """An answer: a value or an error."""

    def __init__(self, scene: Scene, life: Life) -> None:
        self._scene = scene
        self._life = life
        self._done = False
        self._seen = False
        self._value: T | None = None
        self._error: int | None = None
        self._ready_at = 0.0
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def settle(
        self, value: T | None = None, *, error: int | None = None, delay_s: float = 0.0
    ) -> Callable[[], None]:
        """Have the answer, once. Call what this returns when no lock is held."""
        with self._scene.lock:
            if self._done:
                return _nothing
            self._done = True
            self._value, self._error = value, error
            if delay_s:
                self._ready_at = self._scene.clock.monotonic() + delay_s
            if self._event is not None:
                self._event.set()
            callbacks, self._callbacks = self._callbacks, []
            self._scene.drop(self)

        def tell() -> None:
            for callback in callbacks:
                self._call(callback)

        return tell if callbacks else _nothing

    def is_ready(self) -> bool:
        """Whether the answer is there."""
        with self._scene.lock:
            self._bury()
            if not self._done or self._scene.clock.monotonic() < self._ready_at:
                return False
            self._see()
            return True

    def block_until_ready(self) -> None:
        """Wait for the answer."""
        with self._scene.lock:
            self._bury()
            if not self._done and self._event is None:
                self._event = threading.Event()
        if not self._done:
            assert self._event is not None
            self._event.wait()
        self._arrive()

    def on_ready(self, callback: Callable[[Any], object]) -> None:
        """Call back with this future when the answer is there, at once if it is."""
        with self._scene.lock:
            self._bury()
            if not self._done:
                self._callbacks.append(callback)
                self._scene.keep(self)
                return
        self._arrive()
        self._call(callback)

    def cancel(self) -> None:
        """Wait for it no longer. Those who are to be called back are called by another thread."""
        with self._scene.lock:
            if self._seen:
                return
            if self._done:
                self._error, self._ready_at = FUTURE_CANCELLED, 0.0
                return
            tell = self.settle(error=FUTURE_CANCELLED)
            if tell is not _nothing:
                self._scene.network.later(tell)

    def wait(self) -> Any:
        """The answer, or its error raised."""
        self.block_until_ready()
        if self._error is not None:
            raise FDBError(self._error)
        return self._value

    @staticmethod
    def wait_for_any(*futures: Future[Any]) -> int:
        """Wait until one is ready; the place of one that is."""
        if not futures:
            raise ValueError("wait_for_any requires at least one future")
        first = threading.Event()
        for future in futures:
            with future._scene.lock:
                future._bury()
                if future._done:
                    first.set()
                else:
                    future._callbacks.append(lambda _: first.set())
        first.wait()
        done = [place for place, future in enumerate(futures) if future._done]
        place = min(done, key=lambda place: (futures[place]._ready_at, place))
        futures[place]._arrive()
        return place

    def _arrive(self) -> None:
        """Let the time pass that the answer takes."""
        left = self._ready_at - self._scene.clock.monotonic()
        if self._ready_at and left > 0:
            self._scene.clock.sleep(left)
        with self._scene.lock:
            self._ready_at = 0.0  # a clock may count in steps that are longer than what was left
            self._bury()
            self._see()

    def _bury(self) -> None:
        """An answer to a transaction that is gone, and that nobody saw before, is lost."""
        life = self._life
        if self._done and self._error is not None:
            return
        if life.error is not None and not self._seen and not life.settled:
            self._done, self._seen = True, True
            self._value, self._error, self._ready_at = None, life.error, 0.0

    def _see(self) -> None:
        self._seen = True

    def _call(self, callback: Callable[[Any], object]) -> None:
        """As the binding does: what a callback raises is printed and forgotten."""
        try:
            callback(self)
        except Exception:
            traceback.print_exc()


def _nothing() -> None:
    """Nobody to tell."""


class CommitFuture(Future[None]):
    """Once a commit is known to be done, so is all that its transaction asked before."""

    def __init__(self, scene: Scene, life: Life, seen: Callable[[], None]) -> None:
        super().__init__(scene, life)
        self._on_seen = seen

    def _see(self) -> None:
        if not self._seen:
            self._life.settled = True
            self._on_seen()
        super()._see()


class WatchFuture(Future[None]):
    """A watch outlives its transaction once that is committed."""

    committed = False

    @property
    def answered(self) -> bool:
        return self._done

    def _bury(self) -> None:
        if not self.committed:
            super()._bury()


class FutureBytes(Future[bytes]):
    """Bytes, or None, that can be used without waiting first: using them waits."""

    @property  # type: ignore[misc]  # as in the binding, whose tuple layer relies on it
    def __class__(self) -> type:
        return bytes

    @property
    def value(self) -> bytes | None:
        super().wait()
        return self._value

    def wait(self) -> FutureBytes:
        super().wait()
        return self

    def as_foundationdb_key(self) -> bytes | None:
        return self.value

    def as_foundationdb_value(self) -> bytes | None:
        return self.value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.value, name)

    def _present(self) -> bytes:
        value = self.value
        if value is None:
            raise TypeError("there is no value at this key")
        return value

    def __bytes__(self) -> bytes:
        return self._present()

    def __len__(self) -> int:
        return len(self._present())

    def __getitem__(self, place: Any) -> Any:
        return self._present()[place]

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    def __add__(self, other: Any) -> bytes:
        joined: bytes = self._present() + _plain(other)
        return joined

    def __radd__(self, other: Any) -> bytes:
        joined: bytes = _plain(other) + self._present()
        return joined

    def __eq__(self, other: object) -> bool:
        return bool(self.value == _plain(other))

    def __lt__(self, other: Any) -> bool:
        return bool(self._present() < _plain(other))

    def __le__(self, other: Any) -> bool:
        return bool(self._present() <= _plain(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self._present() > _plain(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self._present() >= _plain(other))


def _plain(other: Any) -> Any:
    return other.value if isinstance(other, FutureBytes) else other


class Value(FutureBytes):
    """What a key holds."""

    def present(self) -> bool:
        return self.value is not None


class Key(FutureBytes):
    """A key, or a versionstamp."""
