"""A service that speaks TLS, and what is said where one side does not."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import tenure
from tenure import Settings, StoreError
from tenure.errors import InvalidInput
from tenure.server.listener import Listener
from tenure.server.sockets import listeners, tls_context
from tests.server.certificates import Certificate
from tests.server.process import ServiceProcess


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def service(
    certificate: Certificate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path_factory.mktemp("service"), *certificate.options)
    yield process.start()
    process.kill()


def test_a_queue_is_used_over_tls(
    service: ServiceProcess, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.cert))
    assert service.url.startswith("https://")
    with tenure.connect(service.url) as queue:
        queue.enqueue("mail", id="a")
        (job,) = queue.claim("mail")
        queue.ack(job)
        assert queue.get("a").state == "done"


def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(service: ServiceProcess) -> None:
    """It does not become better with time, so it is not tried again."""
    with tenure.connect(service.url, settings=Settings(busy_timeout=3600)) as queue:
        with pytest.raises(StoreError, match="certificate verify failed") as caught:
            queue.stats()
        assert "SSL_CERT_FILE" in str(caught.value)


@pytest.mark.parametrize("content", [None, "nonsense"])
def test_certificates_to_trust_that_cannot_be_read_are_an_error(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "authority.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with pytest.raises(InvalidInput, match="SSL_CERT_FILE"):
        tenure.connect("https://127.0.0.1:1")


def test_who_speaks_plain_http_to_it_is_told_what_may_be_wrong(service: ServiceProcess) -> None:
    url = service.url.replace("https:", "http:")
    with (
        tenure.connect(url, settings=Settings(busy_timeout=0.1)) as queue,
        pytest.raises(StoreError, match="https://"),
    ):
        queue.stats()


def test_who_speaks_tls_to_a_plain_service_is_told_at_once(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path).start()
    try:
        url = service.url.replace("http:", "https:")
        with (
            tenure.connect(url, settings=Settings(busy_timeout=3600)) as queue,
            pytest.raises(StoreError, match="http://"),
        ):
            queue.stats()
    finally:
        service.kill()


def test_a_service_that_dies_while_a_connection_is_made_is_asked_again() -> None:
    (door,) = listeners("127.0.0.1", 0)
    met: list[int] = []

    def turn_away() -> None:
        with suppress(OSError):  # it was closed
            while True:
                guest, _ = door.accept()
                guest.recv(1)
                guest.close()
                met.append(1)

    with door:
        door.listen()
        threading.Thread(target=turn_away, daemon=True).start()
        url = f"https://127.0.0.1:{door.getsockname()[1]}"
        with (
            tenure.connect(url, settings=Settings(busy_timeout=0.2)) as queue,
            pytest.raises(StoreError, match="cannot be reached"),
        ):
            queue.stats()
        door.shutdown(socket.SHUT_RDWR)
    assert len(met) > 1


# Before it listens ------------------------------------------------------------------------------


def refused(certfile: Path | None, keyfile: Path | None) -> str:
    with pytest.raises(InvalidInput) as caught:
        tls_context(*[one if one is None else str(one) for one in (certfile, keyfile)])
    return str(caught.value)


def test_files_that_cannot_be_used_are_refused(certificate: Certificate, tmp_path: Path) -> None:
    other = Certificate(tmp_path, "other")
    assert "without a certfile" in refused(None, certificate.key)
    assert "No such file" in refused(tmp_path / "missing", certificate.key)
    assert "No such file" in refused(certificate.cert, tmp_path / "missing")
    assert "cannot be read" in refused(tmp_path, certificate.key)
    assert "not a certificate and its key" in refused(certificate.cert, None)
    assert "not a certificate and its key" in refused(certificate.cert, other.key)
    (tmp_path / "empty").touch()
    assert "not a certificate and its key" in refused(tmp_path / "empty", certificate.key)


def test_a_key_with_a_pass_phrase_is_refused_instead_of_asked_for(
    certificate: Certificate, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    subprocess.run(
        [
            "openssl",
            "pkey",
            "-in",
            certificate.key,
            "-aes128",
            "-passout",
            "pass:x",
            "-out",
            locked,
        ],
        check=True,
        capture_output=True,
    )
    assert "pass phrase" in refused(certificate.cert, locked)


def test_a_certificate_and_its_key_may_be_in_one_file(
    certificate: Certificate, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.cert.read_bytes() + certificate.key.read_bytes())
    tls_context(str(both), None)


def test_a_host_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"cannot listen on nowhere\.invalid"):
        listeners("nowhere.invalid", 0)


def test_all_addresses_of_a_host_are_listened_on_at_one_port() -> None:
    found = listeners("localhost", 0)
    assert len({one.getsockname()[1] for one in found}) == 1
    for one in found:
        one.close()


def test_a_socket_that_cannot_accept_does_not_stop_everything_else() -> None:
    async def go() -> None:
        with socket.create_server(("127.0.0.1", 0)) as one:
            listener = Listener(one, lambda client: client.close())
            one.shutdown(socket.SHUT_RD)
            for _ in range(3):
                await asyncio.sleep(0)
            listener.close()

    asyncio.run(go())
