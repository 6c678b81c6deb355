"""The group of a failure: a short id that is shared by failures with the same cause.

It is derived from the queue, the kind of the job, the type of the error, its message without the
parts that differ between jobs, and the innermost function of the user's own code in the traceback.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from tenure.model.job import Failure

GROUP_LENGTH = 12  # hexadecimal digits
MAX_MESSAGE = 500  # characters of a message that matter

_QUOTED = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`")
_UUID = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_HEX = re.compile(r"\b(?:0x[0-9a-fA-F]+|(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,})\b")
_DECIMAL = re.compile(r"(?<![\w-])\d+(?:[.,:]\d+)+(?![\w-])")
_MIXED = re.compile(r"\b(?=[\w-]*\d)[\w-]{2,}\b")  # an id such as job-17 or a1b2
_NUMBER = re.compile(r"\d+")
_SPACE = re.compile(r"\s+")
_FRAME = re.compile(r'^  File "([^"\n]+)", line \d+, in (.+)$', re.MULTILINE)
_NOT_OWN = re.compile(
    r"[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib(?:64)?[/\\]python3[^/\\]*[/\\]"
    r"|[/\\]Lib[/\\]|[/\\]tenure[/\\](?:worker|tasks|queue)[/\\]|^<frozen "
)


def group_of(queue: str, kind: str, failure: Failure) -> str:
    """The id of the group that a failure belongs to."""
    return _group_of(queue, kind, failure.type, failure.message, failure.traceback)


@lru_cache(maxsize=256)  # jobs that fail together often fail alike
def _group_of(queue: str, kind: str, type: str, message: str, traceback: str) -> str:
    return _hashed("\0".join((queue, kind, type, plain(message), own_frame(traceback))))


def other_group(queue: str) -> str:
    """The group of all failures of a queue that has too many groups."""
    return _hashed(f"{queue}\0other")


def _hashed(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=GROUP_LENGTH // 2).hexdigest()


def plain(message: str) -> str:
    """A message without numbers, ids and quoted parts."""
    text = _QUOTED.sub("#", message[:MAX_MESSAGE])
    if "-" in text:
        text = _UUID.sub("#", text)
    if _NUMBER.search(text):  # the others have a digit
        for pattern in (_DECIMAL, _HEX, _MIXED, _NUMBER):
            text = pattern.sub("#", text)
    return _SPACE.sub(" ", text).strip()


def own_frame(traceback: str) -> str:
    """The file and function of the innermost frame outside of libraries, or of the innermost frame
    if there is none. Line numbers are left out: they change with every edit."""
    innermost = ""
    start = len(traceback)
    while (start := traceback.rfind('  File "', 0, start)) >= 0:
        frame = _FRAME.match(traceback, start)
        if frame is not None:
            path, function = frame.groups()
            found = f"{_file_of(path)}:{function}"
            if not _NOT_OWN.search(path):
                return found
            innermost = innermost or found
    return innermost


def _file_of(path: str) -> str:
    """The last parts of a path: the same program may be installed elsewhere."""
    return "/".join(re.split(r"[/\\]", path)[-2:])
