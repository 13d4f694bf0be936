"""Changes: what an option of a plan changes in the training itself, beside its time.

With a change the loss after as many samples may be another one than with the scenario of the file.
"""

from __future__ import annotations

from typing import Any

from simdp.results.comparison import written
from simdp.scenario import Scenario
from simdp.workload.layers.batch_norm import BatchNorm

SAME_RESULT = {
    "attention",
    "compile",
    "compute",
    "cuda_graphs",
    "global_batch",
    "grad_accum",
    "host",
    "input",
    "microbatch",
    "recompute",
    "steps",
}
"""Keys of the workload that change when, but not what; the batch is compared as a whole."""

PRECISION = {"dtype", "precision"}

LOW = ("param_dtype", "reduce_dtype", "output_dtype", "output_dtype_at", "mixed_precision")
"""Options of strategies that choose a precision."""


class Training:
    """What a scenario learns, as far as a plan may change it.

    Parameters
    ----------
    scenario : Scenario
        One point.
    global_batch : int
        Samples of all ranks in a step.
    """

    def __init__(self, scenario: Scenario, global_batch: int) -> None:
        workload, strategy = scenario.workload, scenario.strategy
        self.traits = {
            "global batch": f"{global_batch:,}",
            "averaging": _averaging(scenario),
            "gradients are sent": _sent(scenario),
            "precision": _precision(scenario),
        }
        if workload.lr_scaling != "none":
            n = scenario.cluster.world_size
            self.traits["learning rate"] = f"scaled for {n} ranks ({workload.lr_scaling})"
        norms = any(isinstance(call.layer, BatchNorm) for call in workload.graph.calls)
        if norms and not workload.sync_batchnorm and not strategy.one_process:
            batch = workload.microbatch or global_batch // scenario.cluster.world_size
            self.traits["batch norm"] = f"statistics of {batch} samples"
        self.keys = workload.model_dump(mode="json")

    def changes(self, other: Training) -> list[str]:
        """List what another scenario changes in the training.

        Returns
        -------
        list of str
            As ``"global batch: 512 in place of 256"``.
        """
        names = dict.fromkeys([*self.traits, *other.traits])
        found = [
            (name, other.traits.get(name, "none"), self.traits.get(name, "none")) for name in names
        ]
        found += [
            (key, written(other.keys[key]), written(self.keys[key]))
            for key in self.keys
            if key not in SAME_RESULT | PRECISION and other.keys.get(key) != self.keys[key]
        ]
        return [f"{name}: {new} in place of {old}" for name, new, old in found if new != old]


def _averaging(scenario: Scenario) -> str:
    """What ranks average, and when."""
    strategy: Any = scenario.strategy
    if hasattr(strategy, "local_steps"):
        periods = strategy.period_group_size_dict or {strategy.local_steps: "world"}
        words = {"node": " within a node", "world": ""}
        found = [
            f"every {period} steps{words.get(size, f' among {size} ranks')}"
            for period, size in periods.items()
        ]
        inside = strategy.subgroup
        among = words.get(inside, f" among {inside} ranks")
        gradients = "" if inside == "none" else f", gradients{among} in every step"
        return f"weights {', '.join(found)}{gradients}"
    if strategy.player == "server" and strategy.updates == "asynchronous":
        bound = strategy.max_staleness
        stale = "" if bound is None else f", at most {bound} steps apart"
        return f"none: each rank's gradients update the server's weights{stale}"
    backup = getattr(strategy, "backup_ranks", 0) or getattr(strategy, "backup", 0)
    if backup:
        return f"gradients in every step, without the {backup} slowest ranks"
    return "gradients in every step"


def _sent(scenario: Scenario) -> str:
    """What becomes of gradients on their way."""
    strategy: Any = scenario.strategy
    hook = getattr(strategy, "comm_hook", None)
    if hook is not None and hook.kind != "none":
        return f"by {written(hook.model_dump(mode='json', exclude_defaults=True) | _kind(hook))}"
    compression = getattr(strategy, "compression", "none")
    return "as they are" if compression == "none" else f"as {compression}"


def _kind(hook: Any) -> dict[str, str]:
    return {"kind": hook.kind}


def _precision(scenario: Scenario) -> str:
    """What runs in which precision."""
    workload = scenario.workload
    parts: list[str] = [workload.dtype]
    if workload.precision.kind != "full":
        parts.append(written(workload.precision.model_dump(mode="json", exclude_none=True)))
    for key in LOW:
        value = getattr(scenario.strategy, key, None)
        if value is not None:
            said = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
            parts.append(f"{key} {written(said)}")
    return ", ".join(parts)
