"""The picture in the README: the top of a run's report, as Chromium draws it. `make picture RUN=runs/arithmetic-1`.

Playwright drives the Chromium that the machine has (`CHROMIUM` names one that is not on the path).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from grouprl.report import write_report

PICTURE = Path(__file__).parent / "images" / "quickstart.png"
WIDTH = 1100
LAST = '[data-figure="advantages"]'
"""Down to here."""


def main() -> None:
    run = Path(sys.argv[1])
    program = os.environ.get("CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        report = write_report(run, Path(folder) / "report.html")
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.goto(report.as_uri())
        page.wait_for_selector(".scroller article")
        box = page.locator(LAST).bounding_box()
        if box is None:
            raise SystemExit(f"{run}: its page has no figure of advantages, expected a run with rollouts")
        height = box["y"] + box["height"] + 24
        page.screenshot(path=PICTURE, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
        browser.close()
    print(PICTURE)


if __name__ == "__main__":
    main()
