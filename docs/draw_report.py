"""Draws docs/pictures/report.png from a run that is there.

    foresee demo
    foresee train demo/run.yaml --workers 2 --servers 2 --set run=demo/two
    python docs/draw_report.py demo/two

Makes the page of the run as `foresee report` does, opens it in a headless Chromium (`tests/browser.py`) and takes
pictures of what stands between two headings.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from foresee.tools.cli.report import report

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests"))

from browser import Browser, Page, find_browser  # noqa: E402 - the path has to be known first

FIRST, AFTER = "Where the time of a step goes", "Rows in the cache"
OVER_RUN = "The same over the run"
MARGIN = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=DOCS / "pictures")
    arguments = parser.parse_args()
    executable = find_browser()
    if executable is None:
        raise SystemExit("no Chromium is installed here; name one with FORESEE_BROWSER")
    with tempfile.TemporaryDirectory() as folder, Browser(executable) as browser:
        file = Path(folder) / "report.html"
        report(arguments.run, file)
        _take(browser.open(file, width=1000), arguments.out / "report.png")


def _take(page: Page, picture: Path) -> None:
    """What stands from the first heading to the one after; the curve in between would only make it longer."""
    page.evaluate(
        f"[...document.querySelectorAll('section')].find(one => one.querySelector('h2').textContent === '{OVER_RUN}')"
        ".style.display = 'none'"
    )
    top, bottom = (page.evaluate(_top_of(heading)) for heading in (FIRST, AFTER))
    page.screenshot(picture, top=int(top) - MARGIN, height=int(bottom - top))
    print(f"drew {picture}")


def _top_of(heading: str) -> str:
    return (
        f"[...document.querySelectorAll('h2')].find(one => one.textContent === '{heading}')"
        ".getBoundingClientRect().top + scrollY"
    )


if __name__ == "__main__":
    main()
