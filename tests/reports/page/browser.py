"""A headless Chromium for tests of pages; what needs it is skipped where it is not there."""

import shutil
from contextlib import contextmanager
from io import BytesIO

import pytest

from simdp.reports.page import write

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""


@contextmanager
def chromium():
    """Start a browser, by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'simdp[browser]'")
    if not CHROMIUM:
        pytest.skip("there is no chromium; apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """A page in a browser, with all that it complained of and asked for.

    Attributes
    ----------
    tab : playwright Page
        To be looked at and operated.
    wrong : list of str
        Errors and warnings on the console.
    requests : list of str
        What it asked for, but for the file itself.
    """

    def __init__(self, browser, path, **options):
        self.context = browser.new_context(
            **{"viewport": {"width": 1200, "height": 900}, **options}
        )
        self.tab = self.context.new_page()
        self.wrong, self.requests = [], []
        self.tab.on("console", lambda line: self.wrong.append(f"{line.type}: {line.text}"))
        self.tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.tab.on("request", self._note)
        self.url = path.as_uri()
        self.tab.goto(self.url)
        self.tab.wait_for_selector("html[data-ready=yes]", timeout=60_000)
        self.tab.wait_for_selector("html[data-drawn=yes]", timeout=60_000)
        places = self.tab.locator(".drawn[data-kind=timeline]")
        for place in range(places.count()):
            self.tab.wait_for_function(
                "n => document.querySelectorAll('.drawn[data-kind=timeline]')[n].dataset.ready",
                arg=place,
                timeout=60_000,
            )

    def _note(self, request):
        if request.url != self.url and not request.url.startswith(("data:", "blob:")):
            self.requests.append(request.url)

    def close(self):
        """Close it; whatever was wrong shows."""
        self.context.close()
        assert self.wrong == []
        assert self.requests == []


@contextmanager
def opened(browser, path, **options):
    """Open a file; on leaving, nothing may have been complained of or asked for."""
    found = Opened(browser, path, **options)
    yield found.tab
    found.close()


def written(document, path, **more):
    """Write a document's page to a file."""
    stream = BytesIO()
    write(document, stream, **more)
    path.write_bytes(stream.getvalue())
    return path
