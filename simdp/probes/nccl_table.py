"""Tables as nccl-tests prints them, which `simdp.results.nccl_tests` reads again; without torch."""

from __future__ import annotations

from collections.abc import Mapping

from simdp.results import bandwidth

PERF = {
    "all_gather": "all_gather_perf",
    "all_reduce": "all_reduce_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "reduce_scatter": "reduce_scatter_perf",
}
"""The programs of nccl-tests that measure the same."""

_COLUMNS = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw")
_UNITS = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)")
_WIDTH = 12


def table(
    collective: str, world_size: int, seconds: Mapping[int, float], ranks: list[str], about: str
) -> str:
    """Write one table.

    Parameters
    ----------
    collective : str
        A key of `PERF`.
    world_size : int
        Number of ranks.
    seconds : mapping of int to float
        Time by size of the whole buffer [bytes], [s].
    ranks : list of str
        What each rank runs on: host and device.
    about : str
        What measured.

    Returns
    -------
    str
        Lines with their ends.
    """
    lines = [f"# {PERF[collective]}: {about}", f"# nranks: {world_size}", "# Using devices"]
    lines += [f"#  Rank {r:2d} on {what} device {what}" for r, what in enumerate(ranks)]
    lines += [_line(_COLUMNS, "#"), _line(_UNITS, "#")]
    factor = bandwidth.bus_bandwidth_factor(collective, world_size)
    assert factor is not None, "a collective of PERF has a bandwidth"
    added, root = bandwidth.redop(collective), str(bandwidth.shown_root(collective, 0))
    for nbytes, time in sorted(seconds.items()):
        count = bandwidth.count(collective, nbytes, world_size, "float")
        algbw = nbytes / time / 1e9
        cells = (str(nbytes), str(count), "float", added, root, f"{time * 1e6:.2f}")
        lines.append(_line((*cells, f"{algbw:.3f}", f"{algbw * factor:.3f}"), " "))
    return "".join(f"{line}\n" for line in lines)


def _line(cells: tuple[str, ...], lead: str) -> str:
    return lead + "".join(f"{cell:>{_WIDTH}}" for cell in cells)
