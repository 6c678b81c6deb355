"""Makes the README for package indexes, where links to files of the repository need its address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)\s]+)\)")


def with_absolute_links(text: str, repository: str) -> str:
    """Return Markdown whose links to files lead to the repository."""
    return _LINK.sub(lambda link: f"]({repository}/blob/main/{link[1]})", text)


class Readme(MetadataHookInterface):
    """Sets the `readme` of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        text = with_absolute_links(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
