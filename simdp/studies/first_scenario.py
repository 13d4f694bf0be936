"""A first scenario: one's own model on one's own cluster, with a comment on every key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from simdp.cluster import Cluster
from simdp.cluster.machine import Machine, describe, is_file, read_machine
from simdp.engine.simulate import memory_needed
from simdp.errors import ScenarioError
from simdp.files import format_yaml
from simdp.phrases import problems
from simdp.scenario import Scenario, checked
from simdp.strategies import AnyStrategy
from simdp.strategies.memory import fits
from simdp.workload.models import AnyModel
from simdp.workload.precision import AnyPrecision

LARGEST_BATCH = 64
"""Samples of a micro-batch that nobody has chosen: at most so many."""

STEPS = 4
"""The first is warm-up, and in the others nothing differs where times alone are asked for."""

DATASETS = (None, "images", "tokens", "digits", "blobs", "regression")
"""What a model may learn from; the first that suits it is taken, and none where none is needed."""

OPTIMIZERS = {"images": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}}
"""What suits a data set; adamw for all others."""

Raw = dict[str, Any]


@dataclass(frozen=True)
class Answers:
    """What ``python -m simdp init`` is told.

    Attributes
    ----------
    machine : str
        A name of the catalogue, or a YAML file as ``calibrate`` writes it.
    model, strategy, precision : value
        As in YAML: ``bert-large``, or a mapping with a kind. Left out, the precision is the
        shortest that the devices are made for.
    gpus : int
        The largest number of ranks.
    microbatch : int or None
        Samples per rank and micro-step; left out, as many as fit, up to `LARGEST_BATCH`.
    """

    machine: str
    model: Any
    gpus: int
    strategy: Any = "ddp"
    microbatch: int | None = None
    precision: Any = None


def known_machine(name: str) -> Machine:
    """Read the machine that an answer names.

    Raises
    ------
    ScenarioError
        If there is none.
    """
    try:
        return read_machine(name, Path())
    except ScenarioError as error:
        raise ScenarioError([f"--machine: {line}" for line in error.problems]) from None


def known_value(option: str, value: Any) -> Any:
    """Check a model, a strategy or a precision by itself; return it.

    Raises
    ------
    ScenarioError
        With what is wrong, led by the option.
    """
    fields = {"--strategy": AnyStrategy, "--precision": AnyPrecision}
    field: Any = fields.get(option, AnyModel)
    try:
        TypeAdapter(field).validate_python(value)
    except ValidationError as error:
        colon = [f"{'.' if p.place else ': '}{p.line}" for p in problems(error, value)]
        raise ScenarioError([f"{option}{line}" for line in colon]) from None
    return value


def known_size(name: str, gpus: int) -> int:
    """Check a number of ranks against the nodes of a machine; return it.

    Raises
    ------
    ScenarioError
        If it is neither a part of a node nor whole nodes.
    """
    cluster = known_machine(name).cluster
    per_node = int(cluster.get("devices_per_node", 1))
    if 1 <= gpus <= per_node or (gpus > 0 and gpus % per_node == 0 and "inter_node" in cluster):
        return gpus
    most = f"1 to {per_node}"
    if "inter_node" not in cluster:
        raise ScenarioError(
            [f"--gpus {gpus}: {name} is one node of {per_node}, without a network; give {most}."]
        )
    raise ScenarioError(
        [f"--gpus {gpus}: {name} has nodes of {per_node}; give {most}, or whole nodes."]
    )


def usual_size(name: str) -> int:
    """Four nodes of a machine, or the one that it is."""
    cluster = known_machine(name).cluster
    return int(cluster.get("devices_per_node", 1)) * (4 if "inter_node" in cluster else 1)


def usual_precision(name: str) -> Any:
    """The shortest precision that the devices of a machine are made for, of those that train."""
    cluster = {**known_machine(name).cluster, "world_size": 1, "stragglers": []}
    base = Path(name).parent if is_file(name) else Path()
    (device,) = Cluster.model_validate(cluster, context={"base": base}).devices()
    found = [dtype for dtype in ("bfloat16", "float16") if dtype in device.peak]
    return {"kind": "amp", "dtype": found[0]} if found else "full"


def first_scenario(answers: Answers, file: Path) -> str:
    """Write a scenario that passes ``check`` and runs.

    Parameters
    ----------
    answers : Answers
        What was asked for.
    file : Path
        Where it will lie; nothing is written there.

    Returns
    -------
    str
        YAML with a comment on every key.

    Raises
    ------
    ScenarioError
        If an answer is wrong, or two of them do not suit each other.
    """
    known_size(answers.machine, answers.gpus)
    for option, value in (("--model", answers.model), ("--strategy", answers.strategy)):
        known_value(option, value)
    precision = answers.precision or usual_precision(answers.machine)
    known_value("--precision", precision)
    raw = raw_of(answers, precision)
    kinds = [answers.microbatch] if answers.microbatch else _halves(LARGEST_BATCH)
    chosen = None
    for microbatch in kinds:
        chosen = with_data(raw, microbatch)
        if answers.microbatch or _fits(chosen):
            break
    assert chosen is not None
    chosen["sweep"] = {"cluster.world_size": list(_sizes(chosen))}
    checked_here(chosen)
    return _in_words(answers, chosen, file)


def raw_of(answers: Answers, precision: Any) -> Raw:
    """The scenario without a batch and without data."""
    machine = answers.machine
    model = answers.model["kind"] if isinstance(answers.model, dict) else answers.model
    name = f"{model}_{Path(answers.machine).stem}_{answers.gpus}"
    return {
        "name": name,
        "cluster": {"machine": machine, "world_size": answers.gpus},
        "workload": {"model": answers.model, "precision": precision, "steps": STEPS},
        "strategy": answers.strategy,
        "numerics": False,
    }


def _halves(largest: int) -> Iterator[int]:
    while largest:
        yield largest
        largest //= 2


def with_data(raw: Raw, microbatch: int) -> Raw:
    """Add a batch, and the first data set that the model takes."""
    return with_data_checked(raw, microbatch)[1]


def with_data_checked(raw: Raw, microbatch: int) -> tuple[Scenario, Raw]:
    """The scenario beside its plain data; see `with_data`."""
    kind = raw["strategy"]["kind"] if isinstance(raw["strategy"], dict) else raw["strategy"]
    size = raw["cluster"]["world_size"]
    batch = {"microbatch": microbatch}
    if kind == "data_parallel":  # which cuts one batch for all of its devices
        batch = {"global_batch": microbatch * size}
    refused: ScenarioError | None = None
    for data in DATASETS:
        workload = {**raw["workload"], **batch, "optimizer": OPTIMIZERS.get(data or "", "adamw")}
        if data is not None:
            samples = {"num_samples": microbatch * size * STEPS}
            workload["dataset"] = {"kind": data, **samples}
        found = {**raw, "workload": workload}
        try:
            return checked_here(found), found
        except ScenarioError as error:
            others = [line for line in error.problems if "workload.dataset" not in line]
            refused = ScenarioError(others) if others else refused or error
    assert refused is not None
    raise refused


def checked_here(raw: Raw) -> Scenario:
    """Validate from the current folder, since that of the file may not be there yet."""
    return checked(raw, Path())


def _fits(raw: Raw) -> bool:
    """Whether every device has room for the largest number of ranks."""
    scenario = checked_here(raw)
    return fits(scenario.cluster, memory_needed(scenario).peak.tolist())


def _sizes(raw: Raw) -> Iterator[int]:
    """Numbers of ranks up to the largest: part of a node, then whole nodes, by doubling.

    Those that the scenario cannot have, such as a torus of two, are passed over.
    """
    largest = raw["cluster"]["world_size"]
    per_node = int(checked_here(raw).cluster.devices_per_node or largest)
    sizes, size = set(), 1
    while size < largest:
        sizes.add(size)
        size = min(2 * size, per_node) if size < per_node else 2 * size
    for size in sorted(sizes):
        try:
            checked_here({**raw, "cluster": {**raw["cluster"], "world_size": size}})
        except ScenarioError:
            continue
        yield size
    yield largest


# In words -----------------------------------------------------------------------------------------


def _in_words(answers: Answers, raw: Raw, file: Path) -> str:
    """The scenario as YAML, with its comments."""
    workload, size = raw["workload"], raw["cluster"]["world_size"]
    machine = known_machine(answers.machine)
    per_node = machine.cluster.get("devices_per_node", 1)
    written = answers.machine
    if is_file(written):
        written = os.path.relpath(written, file.parent)
    nodes = answers.machine if is_file(answers.machine) else describe(answers.machine)
    model = raw["name"].split("_" + Path(answers.machine).stem)[0]
    batch = "global_batch" if "global_batch" in workload else "microbatch"
    fitted = "" if answers.microbatch else f", at most {LARGEST_BATCH} that fit"
    said = "samples per GPU and micro-step" if batch == "microbatch" else "samples of all GPUs"
    lines = [
        f"# How does {model} scale on {Path(answers.machine).stem}, from 1 to {size} GPUs?",
        f"# Play it with `python -m simdp run {file}`: a table on the screen, and scaling.png,",
        f"# timeline.png, trace.json and result.json in runs/{raw['name']}/.",
        "# Try another value with --set strategy=fsdp, and several side by side:",
        f"# `python -m simdp compare {file} --set sweep=null --over strategy=ddp,fsdp`.",
        *_line("name", raw["name"]),
        "",
        "cluster:",
        f"  # {nodes}",
        "  # `python -m simdp list machines` prints all, `calibrate` makes one of your own logs",
        *_line("machine", written, 2),
        f"  # GPUs in use: part of a node of {per_node}, or whole nodes",
        *_line("world_size", size, 2),
        "  # Not yours? Write your own nodes in its place (list devices, links and topologies):",
        *_nodes(machine),
        "",
        "workload:",
        "  # a name of `list models`, perhaps with keys: {kind: bert-base, sequence_length: 512}",
        *_line("model", workload["model"], 2),
    ]
    if "dataset" in workload:
        lines += [
            "  # drawn, since times depend on shapes alone; {kind: npz, path: x.npz} reads a file",
            *_line("dataset", workload["dataset"], 2),
        ]
    lines += [
        "  # named and argued as torch's: {kind: sgd, lr: 0.1, momentum: 0.9}",
        *_line("optimizer", workload["optimizer"], 2),
        f"  # {said}{fitted}; grad_accum: 4 would take four per update",
        *_line(batch, workload[batch], 2),
        "  # full, amp (torch.autocast) or mixed (16-bit weights with a 32-bit master)",
        *_line("precision", workload["precision"], 2),
        "  # the first is warm-up",
        *_line("steps", workload["steps"], 2),
        "",
        "# ddp, fsdp, hsdp, zero1, zero2, local_sgd, ...: `list strategies`",
        *_line("strategy", raw["strategy"]),
        "",
        "# times and memory only; true trains every replica in NumPy as well, for small models",
        *_line("numerics", False),
        "",
        "# a point for each value: this makes the scaling plot; any key can be swept",
        "sweep:",
        *_line("cluster.world_size", raw["sweep"]["cluster.world_size"], 2),
    ]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, indent: int = 0) -> Iterator[str]:
    """A key as YAML has it."""
    if isinstance(value, dict | list):
        text = format_yaml({key: value})
    else:
        text = f"{key}: {format_yaml([value]).strip()[1:-1]}"
    for line in text.splitlines():
        yield " " * indent + line


def _nodes(machine: Machine) -> Iterator[str]:
    """A machine's own figures as a comment that makes sense without its name."""
    for key in ("devices_per_node", "device", "topology", "link", "inter_node"):
        if key in machine.cluster:
            for line in _line(key, machine.cluster[key]):
                yield f"  # {line}"
