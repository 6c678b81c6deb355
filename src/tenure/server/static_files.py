"""The files of the dashboard, served from memory.

All links of the page are relative, so that it works below any path. The URL of a file contains a
hash of all files: browsers may keep a file forever, and a new version has new URLs.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from tenure.errors import NotFound
from tenure.server.exchange import Headers
from tenure.server.route import Call, Reply, Route

PAGE = "index.html"
HASH = "CONTENT_HASH"  # stands for it in the page
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Everything comes from this service: a script or style that got into a page would not run.
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
}


class Files:
    """The files by name, and the hash of them all."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        known = sorted(contents.items())
        digest = hashlib.sha256(b"".join(hashlib.sha256(one).digest() for _, one in known))
        self.hash: str = digest.hexdigest()[:16]
        self._contents = contents
        self._contents[PAGE] = contents[PAGE].replace(HASH.encode(), self.hash.encode())

    def reply(self, name: str, headers: Headers, *, forever: bool) -> Reply:
        """Respond with a file; raises NotFound. forever: the URL has the current hash."""
        body = self._contents.get(name)
        if body is None:
            raise NotFound(f"there is no file {name[:100]!r}")
        etag = f'"{self.hash}"'
        kept = "public, max-age=31536000, immutable" if forever else "no-cache"
        media_type = MEDIA_TYPES[name[name.rindex(".") :]]
        sent = {**HEADERS, "etag": etag, "cache-control": kept}
        if headers.get(b"if-none-match") == etag:
            return Reply(b"", 304, media_type, sent)
        return Reply(body, 200, media_type, sent)


@cache
def files() -> Files:
    """The files of this package."""
    folder = resources.files("tenure.server") / "dashboard"
    known = [one for one in folder.iterdir() if one.name.endswith(tuple(MEDIA_TYPES))]
    return Files({one.name: one.read_bytes() for one in known})


async def dashboard(call: Call) -> Reply:
    """Get the dashboard."""
    return files().reply(PAGE, call.headers, forever=False)


async def static_file(call: Call) -> Reply:
    """Get a file of the dashboard."""
    # While a new version replaces an old one, the page may come from another process than the file.
    is_current = call.params["hash"] == files().hash
    return files().reply(call.params["name"], call.headers, forever=is_current)


ROUTES = [
    Route("GET", "/", dashboard, scope=None, answer=str, media_type="text/html", tag="health"),
    Route("GET", "/static/{hash}/{name}", static_file, scope=None, answer=str,
          media_type="text/javascript", tag="health", described=False),
]  # fmt: skip
