"""Play the entrants; print the table, and write the scores and the page."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.leaderboard.adapters import ADAPTERS, Adapter, AdapterError, Program
from benchmarks.leaderboard.adapters.ours import Ours, replay
from benchmarks.leaderboard.adapters.program import LIMIT
from benchmarks.leaderboard.folds import RULES, TITLES
from benchmarks.leaderboard.page import HEADS, PAGE, cells, page
from benchmarks.leaderboard.points import load, put
from benchmarks.leaderboard.scores import FILE, KINDS, Board, played
from simdp.errors import ScenarioError


def parser() -> argparse.ArgumentParser:
    """What may be given."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.leaderboard", description=__doc__)
    made.add_argument("--replay", action="store_true", help="ask simdp again, where that is needed")
    made.add_argument("--program", help="also play a program; the page stays as it is")
    made.add_argument("--name", default="program", help="what to call it")
    made.add_argument("--limit", type=_limit, default=LIMIT, help="its time for a fold [s]")
    made.add_argument(
        "--rule", action="append", choices=RULES, help="only this rule; the page stays as it is"
    )
    return made


def _limit(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no time; give seconds above 0, such as 60.")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 where the program that was given failed, 2 where nothing can be played."""
    given = parser().parse_args(arguments)
    rules = given.rule or list(RULES)
    points = load()
    try:
        if given.replay:
            replay(points, rules, said=lambda line: print(line, file=sys.stderr, flush=True))
    except (AdapterError, ScenarioError) as error:
        print(error, file=sys.stderr)
        return 2
    ours = Ours(points)
    adapters: list[Adapter] = [ours, *(kind() for kind in ADAPTERS.values())]
    if given.program:
        adapters.append(Program(given.name, shlex.split(given.program), given.limit))
    board = played(points, adapters, sum(ours.cpu_s.values()), rules)
    show(board, rules)
    if given.program:
        return int(bool(board.entrants[-1].failures))
    if given.rule is None:
        put(FILE, board.to_json())
        put(PAGE, page(board))
    return 0


def show(board: Board, rules: Sequence[str]) -> None:
    """Print a table for each rule."""
    console = Console(highlight=False, width=120)
    for rule in rules:
        table = Table(title=TITLES[rule])
        table.add_column("")
        for head in HEADS:
            table.add_column(head, justify="left" if head == "entrant" else "right")
        mine = [score for score in board.scores if score.rule == rule]
        for kind in KINDS:
            for wires in dict.fromkeys(score.wires for score in mine):
                group = [one for one in mine if (one.kind, one.wires) == (kind, wires)]
                for number, score in enumerate(group):
                    title = f"{kind}, {wires}" if not number else ""
                    row = [cell.replace("**", "") for cell in cells(score, group)]
                    table.add_row(title, *row, end_section=number == len(group) - 1)
        console.print(table)
        for entrant in board.entrants:
            if rule in entrant.failures:
                console.print(f"{entrant.name}: {entrant.failures[rule]}", markup=False)


if __name__ == "__main__":
    raise SystemExit(main())
