"""Progress bars of tqdm, and lines of steps in training logs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class BarLine(NamedTuple):
    """One state of a progress bar of tqdm."""

    label: str  # before the bar; empty for most training loops
    done: int
    total: int
    elapsed_s: float
    left_s: float | None  # None at the start
    seconds: float | None  # of one unit, as tqdm smooths it
    unit: str  # ``"it"``, ``"examples"``


class StepLine(NamedTuple):
    """One line of a step."""

    step: int
    seconds: float | None  # where the line has it
    per_second: float | None  # tokens per second, where the line has them
    mfu: float | None  # 0 to 1
    rank: int | None


@dataclass(frozen=True)
class ProgressLog:
    """What a log has on speed."""

    bars: tuple[BarLine, ...]
    steps: tuple[StepLine, ...]

    def training(self) -> list[BarLine]:
        """States of the bars of training loops: those without a label, or with an epoch's."""
        words = ("", "epoch", "train", "step", "training", "steps")
        return [
            bar
            for bar in self.bars
            if re.sub(r"[^a-z]", "", bar.label.lower().split(":")[0]) in words
        ]


_BAR = re.compile(
    r"(?<!\d)\d++%\|[^|]*+\|\s*(\d+)/(\d+) \[([\d:]+)<([\d:?]+),\s*([\d.?]+) ?"
    r"([\w.]+/s|s/[\w.]+)?(?: *examples/s)?"
)
_LABEL = re.compile(r"[|%\r\n]")
_STEP = re.compile(r"\b(?:step|iteration|iter)\b[ :=\[]+(\d+)", re.IGNORECASE)
_TIME = re.compile(
    r"(?:step[_ ]time|time per iteration|iter_time|time/step|elapsed time per iteration)"
    r"[^\d\n]{0,14}?(\((?:ms|s)\))?[^\d\n]{0,4}([\d.]+)\s*(ms|s)?\b",
    re.IGNORECASE,
)
_TOKENS = re.compile(
    r"\b(?:tps|wps|tokens?[_ /]*(?:per[_ ]|/)s(?:ec(?:ond)?)?)\b\D{0,4}([\d,.]+)", re.I
)
_MFU = re.compile(r"\bmfu\b\D{0,4}([\d.]+) ?(%?)", re.IGNORECASE)
_RANK = re.compile(r"\[rank ?(\d+)\]", re.IGNORECASE)


def read_progress(lines: Sequence[str]) -> ProgressLog | None:
    """Read progress bars and steps; None if there are none."""
    bars, steps = list[BarLine](), list[StepLine]()
    for line in lines:
        for part in line.split("\r"):
            if "%|" in part:
                bars += _bars(part)
            elif step := _step(part):
                steps.append(step)
    if not (bars or steps):
        return None
    return ProgressLog(tuple(bars), tuple(steps))


def _bars(line: str) -> Iterator[BarLine]:
    end = 0
    for match in _BAR.finditer(line):
        label, end = _LABEL.split(line[end : match.start()])[-1].rstrip(), match.end()
        done, total, elapsed, left, rate, unit = match.groups(default="it/s")
        value = None if "?" in rate else float(rate)
        inverse = unit.startswith("s/")
        seconds = None if not value else (value if inverse else 1 / value)
        yield BarLine(
            label.removesuffix(":").rsplit("]", 1)[-1].strip(),
            int(done),
            int(total),
            _clock(elapsed),
            None if "?" in left else _clock(left),
            seconds,
            unit.removeprefix("s/") if inverse else unit.removesuffix("/s"),
        )


def _clock(text: str) -> float:
    seconds = 0.0
    for part in text.split(":"):
        seconds = 60 * seconds + int(part or 0)
    return seconds


def _step(line: str) -> StepLine | None:
    number = _STEP.search(line)
    if number is None:
        return None
    time, tokens, mfu = _TIME.search(line), _TOKENS.search(line), _MFU.search(line)
    if not (time or tokens or mfu):
        return None
    rank = _RANK.search(line)
    seconds = None
    if time:
        unit = (time[1] or "").strip("()") or time[3] or "s"
        seconds = float(time[2].rstrip(".")) * (1e-3 if unit == "ms" else 1.0)
    return StepLine(
        int(number[1]),
        seconds,
        float(tokens[1].rstrip(".,").replace(",", "")) if tokens else None,
        None if mfu is None else float(mfu[1].rstrip(".")) / (100 if mfu[2] else 1),
        int(rank[1]) if rank else None,
    )
