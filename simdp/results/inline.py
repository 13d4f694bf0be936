"""Inline: how Python and notebooks show a document, which `simdp.reports` knows how to do."""

from __future__ import annotations

from typing import Any

import simdp


class Inline:
    """What shows itself: as text in a terminal, as the page of ``report.html`` in a notebook."""

    def summary(self) -> str:
        """What the command line prints of it, in 80 columns."""
        text: str = simdp.as_text(self)
        return text

    def _repr_html_(self) -> str:
        html: str = simdp.as_html(self)
        return html

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Both at once: a notebook takes the richest that it can show."""
        return {"text/plain": self.summary(), "text/html": self._repr_html_()}
