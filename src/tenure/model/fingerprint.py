"""The group of a failure: a short id that failures with the same cause have in common.

It is made of the queue, the kind of the job, the type of the error, its message without what
differs from job to job, and the innermost function of the user's own code in the traceback.
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
    text = message[:MAX_MESSAGE]
    for pattern in (_QUOTED, _UUID, _DECIMAL, _HEX, _MIXED, _NUMBER):
        text = pattern.sub("#", text)
    return _SPACE.sub(" ", text).strip()


def own_frame(traceback: str) -> str:
    """The file and function of the innermost frame that is not of a library; of the innermost one,
    if all are. Line numbers are left out: they change with every edit."""
    frames = _FRAME.findall(traceback)
    for path, function in reversed(frames):
        if not _NOT_OWN.search(path):
            return f"{_file_of(path)}:{function}"
    return f"{_file_of(frames[-1][0])}:{frames[-1][1]}" if frames else ""


def _file_of(path: str) -> str:
    """The last parts of a path: the same program may be installed elsewhere."""
    return "/".join(re.split(r"[/\\]", path)[-2:])
