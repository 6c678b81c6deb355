"""The lines of the sources that have changed since a commit."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict

from tests.mutation.targets import ROOT

_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def lines_since(commit: str) -> dict[str, set[int]]:
    """Numbers of lines by path, from the root of the repository."""
    command = ["git", "diff", "--unified=0", "--no-color", "--no-ext-diff", commit, "--", "src"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return lines_of(done.stdout)


def lines_of(diff: str) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    path = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line[4:].removeprefix("b/")
        elif hunk := _HUNK.match(line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            found[path].update(range(first, first + count))
    return dict(found)
