"""A real browser for tests, where the machine has one."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """A headless browser; the test is skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser on this machine; looked for {', '.join(BROWSERS)}")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with api.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=found, args=flags)
        yield running
        running.close()


def opened(
    browser: Any, path: Any, *, width: int = 1280, scheme: str = "light"
) -> tuple[Any, list]:
    """The page at a path, and what it complains of: console errors and calls to the network."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, complaints = context.new_page(), []
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.on("request", lambda r: complaints.append(r.url) if r.url.startswith("http") else None)
    page.goto(path.as_uri())
    return page, complaints
