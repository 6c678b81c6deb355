"""Installs what the browser tests need: Chromium from the packages of Debian or Ubuntu, and
axe-core from npm. `make test` calls it.

    python -m tests.browser.install

TENURE_BROWSER names another Chromium or Chrome. TENURE_BROWSER=none skips the tests that need one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NODE = ROOT / ".venv" / "node"
AXE = NODE / "node_modules" / "axe-core" / "axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
NONE = "none"
APT = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]


def is_skipped() -> bool:
    """Whether the user wants no tests in a browser."""
    return os.environ.get("TENURE_BROWSER") == NONE


def browser() -> str | None:
    """The path of a browser, if there is one."""
    named = os.environ.get("TENURE_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


def install_browser() -> str:
    """Install Chromium if there is no browser. Returns what to tell the user."""
    if (found := browser()) is not None:
        return f"browser: {found}"
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return (
            "browser: none. Install Chromium (on Debian: apt-get install chromium), or name one in "
            "TENURE_BROWSER, or set TENURE_BROWSER=none to skip the tests that need it."
        )
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        subprocess.run([*APT, *command], env=quiet, stdout=subprocess.DEVNULL, check=False)
    return f"browser: {browser() or 'none. apt-get could not install chromium; see above.'}"


def install_axe() -> str:
    """Install axe-core if npm is here. Returns what to tell the user."""
    if AXE.exists():
        return "axe-core: installed"
    npm = shutil.which("npm")
    if npm is None:
        return "axe-core: none, because there is no npm. Accessibility tests are skipped."
    NODE.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(NODE)]
    subprocess.run([*command, "axe-core@4"], check=False)
    return f"axe-core: {'installed' if AXE.exists() else 'npm could not install it; see above.'}"


def main() -> int:
    if is_skipped():
        return 0
    for told in (install_browser(), install_axe()):
        sys.stderr.write(f"{told}\n")
    return 1 if browser() is None else 0


if __name__ == "__main__":
    sys.exit(main())
