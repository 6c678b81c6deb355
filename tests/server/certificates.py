"""Certificates for this machine, made for a test."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Certificate:
    """One that signs itself, and its key, as PEM."""

    def __init__(self, folder: Path, name: str = "service") -> None:
        self.cert, self.key = folder / f"{name}.crt", folder / f"{name}.key"
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
        files = ("-nodes", "-keyout", str(self.key), "-out", str(self.cert))
        subprocess.run(
            ["openssl", "req", "-x509", "-days", "2", *curve, *names, *files],
            check=True,
            capture_output=True,
        )

    @property
    def options(self) -> tuple[str, ...]:
        """Of `tenure serve`."""
        return ("--certfile", str(self.cert), "--keyfile", str(self.key))
