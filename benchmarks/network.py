"""Everything that is claimed of collectives and networks: right answers, and what they cost.

    python -m benchmarks.network [--layers FILE ...]

One table of five parts: answers of fixed problems against closed forms (`answers`), what whole runs
cost (`processes`), how time grows with the ranks (`growth`), the event fabric (`fabrics`), and the
payload (`traffic`). ``--layers`` takes tables of ResNet-50's layer times, as the model ``profile``
reads them, in place of the project's own; the first one is run as a whole process too. The exit
status is 0 if every target was reached, 1 if not, 2 if a table cannot be read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import answers, fabrics, growth, processes, traffic
from benchmarks.layers import Layer, default_layers, read_layers
from benchmarks.table import Row, show
from simdp.errors import ScenarioError


def tables(paths: list[Path]) -> dict[str, list[Layer]]:
    """Tables of layers by name: those that were given, or the project's own."""
    if paths:
        return {path.stem: read_layers(path) for path in paths}
    return {"ResNet-50": default_layers()}


def all_rows(given: dict[str, list[Layer]]) -> list[Row]:
    """Measure everything."""
    first = next(iter(given.values()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = list(processes.rows(first, folder))
        right = [*answers.collective_rows(), *answers.step_rows(given, folder)]
    return [*right, *runs, *growth.rows(), *fabrics.rows(), *traffic.rows()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network")
    parser.add_argument("--layers", nargs="+", type=Path, default=[], metavar="FILE")
    try:
        given = tables(parser.parse_args().layers)
    except ScenarioError as error:
        sys.stderr.write("\n".join(error.problems) + "\n")
        return 2
    return show("collectives and networks, CPU time", all_rows(given))


if __name__ == "__main__":
    raise SystemExit(main())
