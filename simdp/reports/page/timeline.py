"""The section of who did what, when."""

from __future__ import annotations

from simdp.reports.figures import seconds
from simdp.reports.page.sections import Timeline
from simdp.reports.page.spans import Shown, packed, shown
from simdp.reports.plots.alike import listed
from simdp.results.result import Result


def timeline(result: Result) -> list[Timeline]:
    """Make the section of a result; none without a trace of at least one step."""
    trace = result.trace
    if trace is None or not any(block.step >= 0 for block in trace.blocks):
        return []
    found = shown(result)
    return [Timeline("Timeline", data=packed(found), said=_said(found), note=_left_out(found))]


def _said(found: Shown) -> str:
    """What a reader who does not see it is told."""
    first, last = found.window.steps[0] + 1, found.window.steps[-1] + 1
    steps = f"step {last}" if first == last else f"steps {first} to {last}"
    text = f"Who computes and who communicates when; at first {steps}"
    text += f", {seconds(found.window.length)}. "
    if found.rows:
        shown = f"{len(found.rows)} of {found.num_rows} groups of ranks"
        shown = f"{len(found.rows)} groups of ranks" if found.num_rows == len(found.rows) else shown
        text += f"Ranks that do the same share a row: {shown}. “Rows” shows every rank; where "
        text += "rows have no room, a colour is what most ranks do, pale where few do anything. "
    slow = [
        f"rank {rank}{said.replace(' · ', ' (')}{')' * bool(said)}"
        for rank, said in found.slow.items()
    ]
    return text + (f"▲ marks slow ranks: {', '.join(slow[:4])}." if slow else "No rank is slow.")


def _left_out(found: Shown) -> str:
    """Say what there was no room for; nothing if all is there."""
    said = []
    if found.merged is not None:
        fine = listed(sorted(int(rank) for rank in {*found.exact.rank}))
        said.append(
            f"Layers one by one are those of ranks {fine}; of others each phase is one bar."
        )
    left = found.num_groups - len(found.ranks)
    if left:
        said.append(f"{left} of {found.num_groups} groups of ranks that do the same are left out.")
    return " ".join(said)
