"""What would fit: how a model that is too large for its devices could be trained on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from simdp.engine.simulate import memory_needed
from simdp.reports.table import nbytes
from simdp.scenario import Scenario
from simdp.strategies import STRATEGIES
from simdp.strategies.memory import fits
from simdp.studies.variant import variant

SHARDED = ("zero1", "zero2", "fsdp")
"""Strategies that divide among the ranks what replicas keep whole, the most thorough last."""

STEPS = 2
"""Everything that a rank keeps is there by the second step."""


class Need(NamedTuple):
    """What a scenario would need with other settings.

    Attributes
    ----------
    words : str
        The settings.
    nbytes : float
        Of the rank that needs most [bytes].
    fits : bool
        Whether every device has room.
    """

    words: str
    nbytes: float
    fits: bool


def what_fits(scenario: Scenario) -> list[Need]:
    """Try less memory for the same training: recomputation, shards, smaller micro-batches.

    Parameters
    ----------
    scenario : Scenario
        One point, which does not fit.

    Returns
    -------
    list of Need
        What fits; where nothing does, all that was tried. Settings that the scenario cannot have
        are passed over.
    """
    tried = [need for need in _tried(scenario) if need is not None]
    return [need for need in tried if need.fits] or tried


def need_in_words(scenario: Scenario, metrics: Mapping[str, Any]) -> str:
    """Say what a rank needs of its device, and whether more ranks could help.

    Parameters
    ----------
    scenario : Scenario
        One point.
    metrics : mapping of str to value
        Of its result.
    """
    peaks = metrics["peak_memory_bytes"]
    k, devices = scenario.cluster.ranks_per_device, scenario.cluster.devices()
    worst = max(range(len(peaks)), key=lambda rank: peaks[rank] / devices[rank].memory)
    there = nbytes(devices[worst].memory) + (f" that {k} ranks share" if k > 1 else "")
    never = ", however many ranks there are" if _is_whole(scenario, metrics["memory_bytes"]) else ""
    needs = f"a rank needs {nbytes(peaks[worst])} of {there}{never}"
    return needs + _too_large_a_unit(scenario, worst, devices[worst].memory / k)


def _too_large_a_unit(scenario: Scenario, rank: int, memory: float) -> str:
    """Say which unit alone a rank has no room for while it is whole, if there is one [bytes]."""
    dealt, itemsize = scenario.program.partition, scenario.program.facts.weight_itemsize
    if dealt is None or dealt.kept.weights:
        return ""
    largest = max(range(len(dealt.units)), key=dealt.unit_elements)
    whole = float(dealt.unit_elements(largest) * itemsize)
    if whole <= memory:
        return ""
    first = dealt.units[largest][0]
    return (
        f"; rank {rank} has no room for the {nbytes(whole)} of the unit that begins with {first}: "
        "make units smaller"
    )


def what_fits_in_words(scenario: Scenario) -> str:
    """Say what would fit, or how close one comes: ``"; strategy fsdp needs 12 GB"``.

    Parameters
    ----------
    scenario : Scenario
        One point, which does not fit.
    """
    found = what_fits(scenario)
    on = f" on these {scenario.cluster.world_size}" if scenario.cluster.world_size > 1 else ""
    listed = ", ".join(f"{need.words} needs {nbytes(need.nbytes)}" for need in found)
    if not found:
        return "; use larger devices."
    if found[0].fits:
        return f"; {listed}{on}."
    return f"; nothing that was tried fits: {listed}{on}; use larger devices, or more with fsdp."


def _is_whole(scenario: Scenario, memory: Mapping[str, int]) -> bool:
    """Whether a rank has no room for what it keeps of the model whole, beside its own pieces."""
    cluster = scenario.cluster
    dealt = scenario.program.partition
    parts = ["parameters"] if dealt is None or dealt.kept.weights else []
    parts += ["gradients", "buckets"] if dealt is None or dealt.kept.gradients else []
    parts += ["optimizer_state"] if dealt is None else []
    room = max(device.memory for device in cluster.devices()) / cluster.ranks_per_device
    return sum(memory[part] for part in parts) > room


def _tried(scenario: Scenario) -> Iterator[Need | None]:
    recompute: dict[str, Any] = {}
    if scenario.workload.recompute == "none" and not scenario.workload.model.timed:
        recompute = {"workload.recompute": "blocks"}
        yield _need(scenario, "recompute: blocks", recompute)
    kinds = [kind for kind in SHARDED if kind in STRATEGIES and kind != scenario.strategy.kind]
    for kind in kinds if scenario.cluster.world_size > 1 else ():
        yield _need(scenario, f"strategy {kind}", {"strategy": {"kind": kind}})
    if kinds and recompute and scenario.cluster.world_size > 1:
        both = {"strategy": {"kind": kinds[-1]}, **recompute}
        yield _need(scenario, f"strategy {kinds[-1]} with recompute: blocks", both)
    yield _smaller(scenario)


def _smaller(scenario: Scenario) -> Need | None:
    """The largest micro-batch that fits, of those that come from halving; or one sample."""
    size, found = scenario.workload.microbatch, None
    least = _need(scenario, "microbatch: 1", {"workload.microbatch": 1}) if size else None
    if least is None or not least.fits:
        return least if size and size > 1 else None
    while size and size > 1 and (found is None or not found.fits):
        size //= 2
        found = _need(scenario, f"microbatch: {size}", {"workload.microbatch": size})
    return found


def _need(scenario: Scenario, words: str, settings: dict[str, Any]) -> Need | None:
    """What a scenario needs with these settings; None where it cannot have them."""
    changed = variant(scenario, settings, STEPS)
    if changed is None:
        return None
    ledger = memory_needed(changed)
    peaks = ledger.peak.tolist()
    return Need(words, max(peaks), fits(changed.cluster, peaks))
