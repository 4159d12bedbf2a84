"""Chromium for tests of pages: Playwright drives the one that the machine has; nothing is downloaded.

`CHROMIUM` names its executable where it is not on the path. Without one the tests are skipped, and say
which package brings it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@dataclass
class Seen:
    """A page in the browser, with what it said and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    """Console messages and errors of scripts."""
    asked: list[str] = field(default_factory=list)
    """Addresses requested, but for the page's own file and data."""

    def eval(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_text_contents()

    def says(self, start: str) -> None:
        """Wait until the count of the groups chosen begins so."""
        from playwright.sync_api import expect

        expect(self.page.locator("[data-count]")).to_have_text(
            re.compile("^" + re.escape(start)), timeout=60_000
        )

    def ready(self) -> Seen:
        """Wait until the browser of groups shows something."""
        self.page.wait_for_selector(".scroller article")
        return self


def executable() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A running Chromium."""
    program = executable()
    if program is None:
        pytest.skip("no Chromium found: install Debian's package chromium, or let CHROMIUM name one")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def look(chromium: Any) -> Iterator[Callable[..., Seen]]:
    """look(path_or_address, width=…, scheme=…): the page, open in a browser."""
    contexts = []

    def open_page(where: Path | str, *, width: int = 1180, height: int = 900, scheme: str = "light") -> Seen:
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        seen = Seen(page)
        address = where.resolve().as_uri() if isinstance(where, Path) else where
        page.on("console", lambda message: seen.complaints.append(message.text))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (seen.complaints.append(dialog.message), dialog.dismiss()))
        page.on(
            "request",
            lambda request: (
                None
                if request.url == address or request.url.startswith("data:")
                else seen.asked.append(request.url)
            ),
        )
        page.goto(address)
        return seen

    yield open_page
    for context in contexts:
        context.close()
