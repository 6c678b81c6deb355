"""Pictures of the dashboard, of the demo that `make run` starts.

    python -m tests.browser.screenshots

They are written into docs/images.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

import tenure
from tests.browser import install
from tests.browser.conftest import ARGUMENTS, PATIENCE_MS
from tests.server.process import ServiceProcess

FOLDER = Path(__file__).parents[2] / "docs" / "images"
SIZE = {"width": 1200, "height": 640}
ABOVE_TRACEBACK = 430  # which names files of this machine
DEMO_SECONDS = 75  # in which the demo gets going


def pages_of(queue: tenure.Queue) -> dict[str, tuple[str, str]]:
    """The address, and the colours, of each picture."""
    dead = queue.jobs(queue="mail", state="dead", limit=1).jobs[0].id
    held = queue.jobs(queue="reports", state="pending", limit=1).jobs[0].id
    return {
        "overview": ("", "light"),
        "overview-dark": ("", "dark"),
        "queue": ("queue/mail", "light"),
        "tenants": ("queue/mail?view=tenants", "light"),
        "job": (f"job/{dead}", "light"),
        "why": (f"job/{held}", "dark"),
        "errors": ("errors", "light"),
        "workers": ("workers", "light"),
        "schedules": ("schedules", "light"),
        "audit": ("audit", "light"),
    }


def take(browser: Browser, url: str, file: Path, scheme: str) -> None:
    page = browser.new_page(viewport=SIZE, color_scheme=scheme, locale="en-GB")  # type: ignore
    page.set_default_timeout(PATIENCE_MS)
    page.goto(url)
    page.get_by_role("main").locator("h1").first.wait_for(state="attached")
    height = ABOVE_TRACEBACK if file.stem == "job" else SIZE["height"]
    page.screenshot(path=file, clip={"x": 0, "y": 0, "width": SIZE["width"], "height": height})
    page.close()


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        service = ServiceProcess(Path(folder), "--demo", "--environment", "demo")
        browser = playwright.chromium.launch(executable_path=install.browser(), args=ARGUMENTS)
        try:
            url = service.start().url
            time.sleep(DEMO_SECONDS)
            with tenure.connect(service.store) as queue:
                for name, (path, scheme) in pages_of(queue).items():
                    take(browser, f"{url}/#/{path}", FOLDER / f"{name}.png", scheme)
        finally:
            browser.close()
            service.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
