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

HEADS = ("who", "answered", "mean", "median", "worst", "tau", "inside", "simdp on these")


def page(board: Board) -> str:
    """Write all of it."""
    return "\n".join(_lines(board))


def _lines(board: Board) -> Iterator[str]:
    yield from ("---", "hide: [navigation]", "---", "", "# Leaderboard", "")
    yield (
        "Who predicts best what public measurements say of steps and collectives? "
        f"{board.points:,} points, version {board.version} of {board.date}, "
        f"answered by {len(board.entrants)} entrants under {len(RULES)} rules, on the terms of "
        f"[the rules](#rules). simdp is {board.simdp}. `python -m benchmarks.leaderboard` makes "
        "this page; the others answer in a minute or two, while simdp's answers are kept, for they "
        f"took {board.replay_cpu_s / 60:.0f} minutes of CPU time (`--replay` asks again)."
    )
    yield ""
    yield (
        "Errors are of the time, absolute; tau is Kendall's rank correlation, the mean over "
        "clusters; *inside* the share of measured times in the entrant's 90 % interval, if it "
        "gives any; *simdp on these* simdp's mean error on the points that the entrant answered. "
        "**Bold**: the least mean error of those who answered the most points. A star: nearer than "
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
        yield f"simdp has not been asked for {lacking:,} of these points yet; `--replay` does."
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
    yield from ("", "## Where others are nearer", "")
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
    yield from ("", "## Entrants", "", "| who | what it does | not modelled |", "|---|---|---|")
    for one in board.entrants:
        yield f"| {one.name} | {one.about} | {one.missing} |"
    yield ""
    yield (
        "Calculon and ASTRA-sim are not run: their rules are written down again from what they "
        "publish, and tested against what ASTRA-sim itself answers. What their shares of bandwidth "
        "are fitted to was chosen with the errors in sight, out of five ways, in their favour."
    )
