"""The reference of a scenario's keys: Markdown pages, from what its schema is made of."""

from __future__ import annotations

import simdp
from simdp.reports import reference_page
from simdp.spec import Quantity, from_catalogue, one_of
from simdp.studies.families import families, tables
from simdp.studies.schema import described
from simdp.units import DIMENSIONS


def reference() -> dict[str, str]:
    """Write the pages.

    Returns
    -------
    dict of str to str
        Markdown by file name; all but ``index.md``, which is written by hand.
    """
    known = described()
    members = {
        table.name: {kind: known.places[member] for kind, member in sorted(table.items())}
        for table in tables()
    }
    named, quantities = dict[str, str](), dict[str, tuple[str, str]]()
    for name, marker in known.markers.items():
        if isinstance(marker, one_of):
            named[name] = next(table.name for table in tables() if table is marker.table)
        elif isinstance(marker, from_catalogue):
            named[name] = f"{marker.family}s"
        elif isinstance(marker, Quantity):
            units = ", ".join(DIMENSIONS[marker.dimension].printed)
            quantities[name] = marker.dimension + ", > 0" * marker.exclusive, units
    calls = reference_page.Named(members, families(), named, quantities)
    return reference_page.pages(known.definitions, calls, simdp.__version__)
