"""The page: ``docs/leaderboard.md``, made of the scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.leaderboard.folds import RULES, TITLES
from benchmarks.leaderboard.scores import FIRST, KINDS, Board, Score

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "leaderboard.md"
GUIDE = Path(__file__).parent / "README.md"
EXAMPLE = Path(__file__).parent / "example.py"

HEADS = ("entrant", "answered", "mean", "median", "worst", "tau", "inside", "simdp on these")


def page(board: Board) -> str:
    """Write all of it."""
    return "\n".join(_lines(board))


def _lines(board: Board) -> Iterator[str]:
    yield from ("---", "hide: [navigation]", "---", "", "# Leaderboard", "")
    yield (
        "How accurately do simulators and formulas predict public measurements of steps and "
        "collectives? "
        f"{board.points:,} points, version {board.version} of {board.date}, "
        f"predicted by {len(board.entrants)} entrants under {len(RULES)} [rules](#rules). "
        f"simdp is {board.simdp}. `python -m benchmarks.leaderboard` writes "
        "this page; the others take a minute or two; simdp's predictions are stored, since they "
        f"took {board.replay_cpu_s / 60:.0f} minutes of CPU time (`--replay` computes them again)."
    )
    yield ""
    yield (
        "Errors are of the time, absolute; tau is Kendall's rank correlation, the mean over "
        "clusters; *inside* is the share of measured times in the entrant's 90 % interval, if it "
        "has one; *simdp on these* is simdp's mean error on the points that the entrant answered. "
        "**Bold**: the least mean error of the entrants with the most answers. A star: better than "
        "simdp on these points."
    )
    for rule in RULES:
        yield from _of_rule(board, rule)
    yield from _where_nearer(board)
    yield from _entrants(board)
    guide = GUIDE.read_text(encoding="utf-8").replace("\n# ", "\n## ").rstrip()
    yield from ("", f"#{guide}", "")


def _of_rule(board: Board, rule: str) -> Iterator[str]:
    mine = [score for score in board.scores if score.rule == rule]
    yield from ("", f"## {TITLES[rule][0].upper()}{TITLES[rule][1:]}", "")
    for entrant in board.entrants:
        if rule in entrant.failures:
            yield f"No answers of {entrant.name}: {entrant.failures[rule]}"
            yield ""
    asked = {(one.kind, one.wires): one.asked for one in mine}
    lacking = sum(asked.values()) - sum(one.answered for one in mine if one.name == FIRST)
    if lacking:
        yield f"simdp has no predictions for {lacking:,} of these points yet; `--replay` adds them."
        yield ""
    yield "| " + " | ".join(("", *HEADS)) + " |"
    yield "|---|---|" + "--:|" * (len(HEADS) - 1)
    for kind in KINDS:
        for wires in dict.fromkeys(score.wires for score in mine):
            group = [one for one in mine if (one.kind, one.wires) == (kind, wires)]
            for number, score in enumerate(group):
                title = f"{kind}, {wires}" if not number else ""
                yield "| " + " | ".join((title, *cells(score, group))) + " |"


def cells(score: Score, group: Sequence[Score]) -> list[str]:
    """A row of a table, its class apart."""
    most = max(one.answered for one in group)
    full = [one for one in group if one.answered == most]
    mean = share(score.mean_error)
    if score in full and score.mean_error == min(one.mean_error for one in full):
        mean = f"**{mean}**"
    first = score.first_error
    star = score.name != FIRST and first is not None and score.mean_error < first
    return [
        score.name,
        f"{score.answered} of {score.asked}",
        mean + " ★" * star,
        share(score.median_error),
        share(score.worst_error),
        "-" if score.tau is None else f"{score.tau:.2f}",
        "-" if score.inside is None else f"{score.inside:.0%}".replace("%", " %"),
        "-" if first is None or score.name == FIRST else share(first),
    ]


def share(value: float) -> str:
    """An error in per cent."""
    return f"{100 * value:.0f} %" if value >= 0.1995 else f"{100 * value:.1f} %"


def _where_nearer(board: Board) -> Iterator[str]:
    yield from ("", "## Where others are better", "")
    yield (
        "Clusters on which an entrant's mean error is below simdp's, on the points that it "
        "answered, by more than the noise of the data:"
    )
    yield ""
    for entrant in board.entrants:
        parts = [
            f"{score.rule}, {score.kind}, {score.wires}: {', '.join(score.nearer)}"
            for score in board.scores
            if score.name == entrant.name and score.nearer
        ]
        if entrant.name != FIRST:
            yield f"- {entrant.name}: {'; '.join(parts) if parts else 'nowhere'}."


def _entrants(board: Board) -> Iterator[str]:
    yield from ("", "## Entrants", "", "| entrant | method | not modelled |", "|---|---|---|")
    for one in board.entrants:
        yield f"| {one.name} | {one.about} | {one.missing} |"
    yield ""
    yield (
        "Calculon, ASTRA-sim and NCCL's tuner are not run: their published rules are implemented "
        "here and tested, against answers of ASTRA-sim itself and figures of NCCL's. The data for "
        "fitting the first two's shares of bandwidth were chosen with the errors in sight, out of "
        "five ways, in their favour."
    )
