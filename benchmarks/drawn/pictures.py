"""A plotly figure as a PNG, drawn by the browser that is on this machine.

In: figures and a path. Out: a file. plotly has no renderer of its own for images; a headless Chromium takes a picture
of the page it draws. Where there is none, the pictures stay as they are and the caller is told.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH, HEIGHT = 1000, 560
PATIENCE_SECONDS = 120


def find_browser() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def draw(figure: go.Figure, path: Path, *, height: int = HEIGHT) -> bool:
    """Writes the picture; False if this machine has no browser."""
    browser = find_browser()
    if browser is None:
        return False
    figure.update_layout(width=WIDTH, height=height)
    chart = figure.to_html(full_html=False, include_plotlyjs=False, config={"staticPlot": True})
    page = (
        '<!doctype html><html><head><meta charset="utf-8"><style>body{margin:0;background:#fff}</style>'
        f"<script>{get_plotlyjs()}</script></head><body>{chart}</body></html>"
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "page.html").write_text(page, "utf-8")
        picture = Path(folder) / "picture.png"
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000",
            f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{height}", f"--screenshot={picture}",
            (Path(folder) / "page.html").as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, path)
    return True
