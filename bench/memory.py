"""How much memory this process has."""

from __future__ import annotations

import resource
from pathlib import Path


def resident_mib() -> float:
    """What of this process is in memory now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
