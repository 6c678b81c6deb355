"""Listening sockets and certificates, checked before anything is started."""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path

from tenure.errors import InvalidInput


def listeners(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to all addresses of a host, on one port; port 0 picks a free one."""
    found: list[socket.socket] = []
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            try:
                found.append(_listener(family, kind, protocol, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL and (found or len(infos) > 1):
                    continue  # a name may have addresses that this machine does not have
                raise
            port = found[0].getsockname()[1]
    except OSError as error:
        for one in found:
            one.close()
        reason = error.strerror or str(error)
        raise InvalidInput("port", f"cannot listen on {host}:{port}: {reason}") from None
    if not found:
        raise InvalidInput("host", f"{host} is not an address of this machine")
    return found


def _listener(
    family: int, kind: int, protocol: int, address: tuple[str | int, ...]
) -> socket.socket:
    # Without the protocol, asyncio does not set TCP_NODELAY.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def tls_context(certfile: str | None, keyfile: str | None) -> ssl.SSLContext | None:
    """Return what TLS needs; None without a certificate. Raises InvalidInput."""
    if certfile is None:
        if keyfile is not None:
            raise InvalidInput("keyfile", "cannot be used without a certfile")
        return None
    for name, path in (("certfile", certfile), ("keyfile", keyfile)):
        try:
            text = b"" if path is None else Path(path).read_bytes()
        except OSError as error:
            raise InvalidInput(name, f"{path} cannot be read: {error.strerror}") from None
        if b"ENCRYPTED" in text:
            raise InvalidInput(name, f"the key in {path} has a pass phrase; it must have none")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certfile, keyfile)
    except ssl.SSLError as error:
        files = certfile if keyfile is None else f"{certfile} and {keyfile}"
        reason = error.reason or str(error)
        raise InvalidInput(
            "certfile", f"{files} are not a certificate and its key, as PEM: {reason}"
        ) from None
    return context
