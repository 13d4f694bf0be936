"""How large a report.html is, what writing one costs, and how soon a browser can be used on it.

python -m benchmarks.report_page

The last needs `pip install 'simdp[browser]'` and chromium.
"""

from __future__ import annotations

import shutil
import tempfile
from io import BytesIO
from pathlib import Path
from time import process_time

import simdp
from benchmarks.table import Row, show
from simdp.reports import page
from simdp.results.result import Study

ROOT = Path(__file__).parents[1]
MAIN = ROOT / "scenarios" / "8gpu_ring.yaml"

TIMES = {
    "numerics": False,
    "workload.steps": 4,
    "cluster.topology": "switch",
    "cluster.stragglers": [{"kind": "lognormal", "sigma": 0.1}],
}

REPEATS = 5

USABLE = """
new Promise(done => {
  const look = () => document.documentElement.dataset.ready === "yes"
    ? done(performance.now()) : setTimeout(look, 5);
  look();
})
"""

DRAWN = """
new Promise(done => {
  const look = () => document.documentElement.dataset.drawn === "yes"
    && [...document.querySelectorAll(".drawn[data-kind=timeline]")].every(one => one.dataset.ready)
    ? done(performance.now()) : setTimeout(look, 5);
  look();
})
"""


def study(**changes: object) -> Study:
    """The main job at other sizes, times alone; without changes as it is."""
    given = {**TIMES, **changes} if changes else {}
    return simdp.sweep(simdp.load_scenario(MAIN, given))


def seconds_to_write(of: Study) -> tuple[float, bytes]:
    """CPU time of the first page that a process writes but for imports [s], and the page."""
    stream = BytesIO()
    begin = process_time()
    page.write(of, stream)
    return process_time() - begin, stream.getvalue()


def seconds_until_ready(content: bytes) -> list[float]:
    """From asking for the file until it can be used, and until all is drawn [s].

    Both the least of some; none without a browser.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return []
    if program is None:
        return []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        path = Path(folder) / "report.html"
        path.write_bytes(content)
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        found: list[list[float]] = []
        for _ in range(REPEATS):
            tab = browser.new_page(viewport={"width": 1200, "height": 900})
            tab.goto(path.as_uri())
            found.append([tab.evaluate(look) / 1e3 for look in (USABLE, DRAWN)])
            tab.close()
        browser.close()
    return [min(column) for column in zip(*found, strict=True)]


def main() -> int:
    """Print the table."""
    rows: list[Row] = []
    main_job = study()
    page.write(main_job, BytesIO())  # imports
    cost, _ = seconds_to_write(main_job)
    rows.append(("writing the main job's page, CPU", f"{cost:.3f} s", "0.15 s", cost <= 0.15))
    for n in (8, 1024, 16384):
        cost, content = seconds_to_write(study(**{"cluster.world_size": n}))
        size = len(content) / 1e6
        rows.append((f"{n:,} ranks: size", f"{size:.2f} MB", "3 MB", size < 3))
        rows.append((f"{n:,} ranks: writing, CPU", f"{cost:.2f} s", "5 s", cost < 5))
        for name, ready in zip(
            ("it can be used", "all is drawn"), seconds_until_ready(content), strict=False
        ):
            rows.append((f"{n:,} ranks: until {name}", f"{ready:.2f} s", "1 s", ready < 1))
    return show("report.html", rows)


if __name__ == "__main__":
    raise SystemExit(main())
