"""A service that announces itself is found by those who look, until it ends."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from zeroconf import (
    RecordUpdate,
    RecordUpdateListener,
    ServiceBrowser,
    ServiceListener,
    Zeroconf,
)
from zeroconf._dns import DNSQuestion
from zeroconf._protocol.outgoing import DNSOutgoing
from zeroconf.const import _CLASS_IN, _FLAGS_QR_QUERY, _TYPE_PTR

from tenure.server.mdns import OLD_TYPE, TYPE
from tests.crash.watched import PATIENCE
from tests.server.process import ServiceProcess


class Found(ServiceListener):
    """What a browser tells of."""

    def __init__(self) -> None:
        self.added: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.removed: queue.SimpleQueue[str] = queue.SimpleQueue()

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.added.put(name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.removed.put(name)

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """It is of no matter here."""


class Heard(RecordUpdateListener):
    """What is answered to a question that no browser would ask."""

    def __init__(self, name: str) -> None:
        self.answered = threading.Event()
        self._name = name

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        if any(one.new.name == OLD_TYPE and self._name in repr(one.new) for one in records):
            self.answered.set()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path, "--mdns")
    yield process.start()
    process.kill()


@pytest.fixture
def zeroconf() -> Iterator[Zeroconf]:
    zeroconf = Zeroconf(interfaces=["127.0.0.1"])
    yield zeroconf
    zeroconf.close()


def test_a_service_is_found_and_withdrawn(service: ServiceProcess, zeroconf: Zeroconf) -> None:
    found = Found()
    browser = ServiceBrowser(zeroconf, TYPE, found)
    ours = f"-{service.port}.{TYPE}"  # there may be those of other tests
    while not (name := found.added.get(timeout=PATIENCE)).endswith(ours):
        pass
    info = zeroconf.get_service_info(TYPE, name, timeout=int(PATIENCE * 1000))
    assert info is not None
    assert info.decoded_properties == {"http_port": str(service.port)}
    assert info.parsed_addresses() == ["127.0.0.1"], "it can be reached there"
    assert info.port == service.port

    heard = Heard(name.removesuffix(f".{TYPE}"))
    question = DNSQuestion(OLD_TYPE, _TYPE_PTR, _CLASS_IN)
    zeroconf.add_listener(heard, question)
    asked_at = time.monotonic()
    while not heard.answered.wait(0.2):
        assert time.monotonic() < asked_at + PATIENCE, "nobody answers"
        out = DNSOutgoing(_FLAGS_QR_QUERY)
        out.add_question(question)
        zeroconf.send(out)

    assert service.stop() == 0, service.log
    while found.removed.get(timeout=PATIENCE) != name:
        pass
    browser.cancel()


def test_a_service_that_ends_before_it_was_announced_ends_well(service: ServiceProcess) -> None:
    assert service.stop() == 0, service.log
    assert "Traceback" not in service.log
