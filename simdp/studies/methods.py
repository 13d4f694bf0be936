"""Methods: ways to train a model on a cluster, and the one scenario of each.

`simdp.studies.fits` compares them, and `simdp.studies.first_scenario` writes one of them to a file:
both take the scenario from here, so that a run gives what the table of ``fits`` has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from simdp.cluster import Cluster
from simdp.cluster.hardware import (
    DEVICES,
    MACHINES,
    Machine,
    describe_machine,
    is_file,
    read_machine,
)
from simdp.errors import ScenarioError, unknown_name
from simdp.phrases import problems
from simdp.scenario import Scenario, checked
from simdp.strategies import AnyStrategy, Strategy, strategy_class
from simdp.workload.layers.linear import Linear, TransposedLinear
from simdp.workload.models import AnyModel, Model
from simdp.workload.precision import AnyPrecision

STEPS = 4
"""The first is warm-up, and in the others nothing differs where times alone are asked for."""

DATASETS = (None, "images", "tokens", "digits", "blobs", "regression")
"""What a model may learn from; the first that suits it is taken, and none where none is needed."""

OPTIMIZERS = {"images": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}}
"""What suits a data set; adamw for all others."""

STRATEGIES_TRIED: dict[str, Any] = {
    "ddp": "ddp",
    "fsdp": "fsdp",
    "hsdp": "hsdp",
    "zero1": {"kind": "zero1", "communication": "deepspeed"},
    "zero2": {"kind": "zero2", "communication": "deepspeed"},
    "zero3": "zero3",
}
"""The strategies of ``fits``, the best known first, and how each is written: ZeRO's stages 1 and 2
as DeepSpeed communicates."""

OFFLOADED: tuple[Any, ...] = (
    {"kind": "zero2", "communication": "deepspeed", "offload_optimizer": "cpu"},
    {"kind": "zero3", "offload_optimizer": "cpu", "offload_param": "cpu"},
)
"""ZeRO-Offload, and ZeRO-Infinity's first tier."""

ADAPTED = ("ddp", "fsdp")
"""Strategies that LoRA is tried with."""

RECOMPUTE = ("none", "selective", "blocks")

METHODS = ("full", "offload", "lora", "qlora")
"""What is trained, and where: all weights; all of them, with states in the host's memory; adapters;
adapters of a model in 4 bits."""

ADAPTER_TARGETS = (
    ("q_proj", "v_proj"),
    ("c_attn",),
    ("query_key_value",),
    ("Wqkv",),
    ("query", "value"),
    ("q", "v"),
)
"""Linear layers that get an adapter, by the names that models give them: those of PEFT
(peft/utils/constants.py, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING)."""

OWN_LINK, OWN_NETWORK = "pcie4-x16", "100gbe"
"""What is assumed of nodes with a device that no machine of the catalogue has."""

Raw = dict[str, Any]


class FitsRequest(NamedTuple):
    """What ``python -m simdp fits`` and ``init`` are given.

    Attributes
    ----------
    model : value
        As in YAML.
    gpus : int or None
        Number of ranks; None for the least that fits.
    machine, device : str or None
        One of the two: a machine of the catalogue or a YAML file as ``calibrate`` writes it, or a
        device whose usual links are assumed.
    sequence_length, microbatch : int or None
        Tokens of a sample; samples of a micro-batch, in place of as many as fit.
    node_size : int or None
        Devices of a node, in place of the machine's.
    precision : value
        As in YAML; left out, 16-bit weights with a 32-bit master where devices are made for that.
    strategy : value
        As in YAML; left out, each of `STRATEGIES_TRIED`.
    recompute : str or None
        One of `RECOMPUTE`; left out, each.
    method : str or None
        One of `METHODS`; left out, each.
    """

    model: Any
    gpus: int | None
    machine: str | None = None
    device: str | None = None
    sequence_length: int | None = None
    microbatch: int | None = None
    node_size: int | None = None
    precision: Any = None
    strategy: Any = None
    recompute: str | None = None
    method: str | None = None

    @property
    def title(self) -> str:
        """What the model is called."""
        return str(self.model["kind"] if isinstance(self.model, dict) else self.model)


class TrainingNodes(NamedTuple):
    """Nodes that a model is trained on.

    Attributes
    ----------
    title : str
        What they are called: a machine, or a device.
    cluster : dict
        Keys of a scenario's ``cluster``, but for ``world_size``.
    figures : dict
        What these amount to: the machine's own keys, with those that are written over it.
    assumed : str or None
        What was assumed, in words; None where a machine was given.
    """

    title: str
    cluster: Raw
    figures: Raw
    assumed: str | None

    @property
    def per_node(self) -> int:
        """Devices of a node."""
        return int(self.figures.get("devices_per_node", 1))

    @property
    def is_networked(self) -> bool:
        """Whether there may be several nodes."""
        return "inter_node" in self.figures

    def check_size(self, gpus: int) -> int:
        """Check a number of ranks against the nodes; return it.

        Raises
        ------
        ScenarioError
            If it is neither a part of a node nor whole nodes.
        """
        per_node, networked = self.per_node, self.is_networked
        if 1 <= gpus <= per_node or (gpus > 0 and gpus % per_node == 0 and networked):
            return gpus
        most = f"1 to {per_node}"
        if not networked:
            raise ScenarioError(
                [
                    f"--gpus {gpus}: {self.title} is one node of {per_node}, without a network; "
                    f"give {most}."
                ]
            )
        raise ScenarioError(
            [f"--gpus {gpus}: {self.title} has nodes of {per_node}; give {most}, or whole nodes."]
        )

    @property
    def usual_size(self) -> int:
        """Four nodes, or the one that it is."""
        return self.per_node * (4 if self.is_networked else 1)

    @property
    def usual_precision(self) -> Any:
        """The shortest that the devices are made for, with 32-bit master weights."""
        cluster = {**self.figures, "world_size": 1, "stragglers": [], "failures": []}
        file = self.cluster.get("machine", "")
        base = Path(file).parent if is_file(file) else Path()
        (device,) = Cluster.model_validate(cluster, context={"base": base}).devices()
        found = [dtype for dtype in ("bfloat16", "float16") if dtype in device.peak]
        return {"kind": "mixed", "dtype": found[0]} if found else "full"


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
    """Check a model, a strategy or a precision alone; return it.

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


def known_choice(option: str, value: str | None, known: Sequence[str]) -> None:
    """Check one of a few words.

    Raises
    ------
    ScenarioError
        If it is none of them.
    """
    if value is not None and value not in known:
        raise ScenarioError([f"{option}: {unknown_name(option[2:], value, list(known))}"])


def machine_with(device: str) -> str:
    """Choose the machine of the catalogue whose links are assumed for a device.

    NVIDIA's own nodes come first, then those with the most devices.

    Raises
    ------
    ScenarioError
        If there is no such device, or no machine has it.
    """
    found = _machines_with(device)
    if not found:
        raise ScenarioError(
            [
                f"--device {device}: no machine of the catalogue has it, so that its links are not "
                f"known; add --node-size 8 to assume {OWN_LINK} and {OWN_NETWORK}, or give "
                "--machine FILE.yaml with its cluster."
            ]
        )
    return found[0]


def _machines_with(device: str) -> list[str]:
    if device not in DEVICES.names():
        line = unknown_name("device", device, DEVICES.names())
        raise ScenarioError([f"--device: {line}"])
    found = []
    for name in MACHINES.mentioning(device):
        cluster = read_machine(name, Path()).cluster
        if cluster.get("device") == device:
            networked = "inter_node" in cluster
            per_node = cluster.get("devices_per_node", 1)
            found.append((not networked, not name.startswith("dgx"), -per_node, name))
    return [name for *_, name in sorted(found)]


def place_of(
    machine: str | None, device: str | None, node_size: int | None = None
) -> TrainingNodes:
    """Find the nodes that are meant.

    Raises
    ------
    ScenarioError
        If not exactly one of machine and device is given, or it does not exist.
    """
    if (machine is None) == (device is None):
        which = "neither" if machine is None else "both"
        raise ScenarioError([f"--device, --machine: {which} given; give one of them."])
    if machine is None and node_size is not None and not _machines_with(device or ""):
        return _own_nodes(device or "", node_size)
    name = machine or machine_with(device or "")
    cluster: Raw = {"machine": name}
    figures = dict(known_machine(name).cluster)
    if node_size is not None and node_size != figures.get("devices_per_node", 1):
        cluster["devices_per_node"] = figures["devices_per_node"] = node_size
    if machine is not None:
        return TrainingNodes(Path(name).stem, cluster, figures, None)
    nodes = f"; nodes of {node_size}" if node_size else ""
    return TrainingNodes(
        name, cluster, figures, f"links as in {name}: {describe_machine(name)}{nodes}"
    )


def _own_nodes(device: str, node_size: int) -> TrainingNodes:
    """Nodes of a device that no machine has."""
    figures: Raw = {
        "devices_per_node": node_size,
        "device": device,
        "topology": "switch",
        "link": OWN_LINK,
        "inter_node": {"topology": "switch", "link": OWN_NETWORK},
    }
    assumed = (
        f"nodes of {node_size} x {device}, {OWN_LINK} in a node and one {OWN_NETWORK} card between "
        "nodes, since no machine of the catalogue has such devices"
    )
    return TrainingNodes(device, dict(figures), figures, assumed)


class Method(NamedTuple):
    """How to train: keys of a scenario.

    Attributes
    ----------
    name : str
        One of `METHODS`.
    strategy, precision : value
        As in YAML.
    recompute : str
        Of ``workload.recompute``.
    lora, quantized : dict or None
        Of the workload.
    """

    name: str
    strategy: Any
    precision: Any
    recompute: str
    lora: Raw | None = None
    quantized: Raw | None = None

    @property
    def kind(self) -> str:
        """Of the strategy."""
        strategy = self.strategy
        return str(strategy["kind"] if isinstance(strategy, dict) else strategy)

    @property
    def of_workload(self) -> Raw:
        """Keys of a scenario's workload."""
        found: Raw = {"precision": self.precision, "recompute": self.recompute}
        for key in ("lora", "quantized"):
            if (value := getattr(self, key)) is not None:
                found[key] = value
        return found

    @property
    def settings(self) -> Raw:
        """Dotted keys."""
        keys = {f"workload.{key}": value for key, value in self.of_workload.items()}
        return {"strategy": self.strategy, **keys}


def methods(asked: FitsRequest, precision: Any) -> Iterator[tuple[Method, ...]]:
    """The methods that are tried: each group has the same one with more and more recomputation.

    Parameters
    ----------
    asked : Asked
        Leaves some out.
    precision : value
        That all of them train in.
    """
    for name in (asked.method,) if asked.method else METHODS:
        for strategy, more in _ways(asked, name):
            kinds = (asked.recompute,) if asked.recompute else RECOMPUTE
            yield tuple(Method(name, strategy, precision, kind, **more) for kind in kinds)


def _ways(asked: FitsRequest, name: str) -> Iterator[tuple[Any, Raw]]:
    """Strategies of a method, and keys of a workload beside them."""
    more: Raw = {}
    if name in ("lora", "qlora"):
        found = _adapters(asked.model, in_4_bits=name == "qlora")
        if found is None:
            return
        more = found
    kinds: Sequence[Any] = tuple(STRATEGIES_TRIED)
    if name == "offload":
        kinds = OFFLOADED
    elif name != "full":
        kinds = ADAPTED
    wanted = asked.strategy
    if isinstance(wanted, dict):
        kinds = [wanted] if name != "offload" else []
    elif wanted is not None:
        same = [way for way in kinds if wanted == (way["kind"] if isinstance(way, dict) else way)]
        kinds = same or ([wanted] if name != "offload" else [])
    for kind in kinds:
        yield (STRATEGIES_TRIED.get(kind, kind) if isinstance(kind, str) else kind), more


def _adapters(model: Any, in_4_bits: bool) -> Raw | None:
    """Which layers get adapters, and which are stored in 4 bits; None where it has none."""
    field: Any = AnyModel
    made: Model = TypeAdapter(field).validate_python(model)
    if made.timed:
        return None
    graph = made.graph
    layers = [graph.calls[call].layer for block in graph.blocks for call in block.calls]
    linear = [layer for layer in layers if isinstance(layer, Linear | TransposedLinear)]
    ends = {layer.name.rpartition(".")[2] for layer in linear}
    targets = next((names for names in ADAPTER_TARGETS if ends.issuperset(names)), None)
    if targets is None:
        return None
    if not in_4_bits:
        return {"lora": {"targets": list(targets)}}
    if not all(isinstance(layer, Linear) for layer in linear):
        return None
    return {"lora": {"targets": list(targets)}, "quantized": {"targets": sorted(ends)}}


def raw_of(asked: FitsRequest, place: TrainingNodes, gpus: int, method: Method) -> Raw:
    """A method's scenario without a batch and without data."""
    model = asked.model
    if asked.sequence_length is not None:
        given = model if isinstance(model, dict) else {"kind": model}
        model = {**given, "sequence_length": asked.sequence_length}
    return {
        "name": f"{asked.title}_{place.title}_{gpus}",
        "cluster": {**place.cluster, "world_size": gpus},
        "workload": {"model": model, "steps": _steps(method), **method.of_workload},
        "strategy": method.strategy,
        "numerics": False,
    }


def _steps(method: Method) -> int:
    """As many as show all that a strategy does: a warm-up, and whole periods behind it."""
    field: Any = AnyStrategy
    strategy: Strategy = TypeAdapter(field).validate_python(method.strategy)
    return strategy.whole_periods(STEPS)


def with_data(raw: Raw, microbatch: int) -> tuple[Scenario, Raw]:
    """Add a batch, and the first data set that the model takes; return it checked, and as YAML.

    Raises
    ------
    ScenarioError
        If there can be no such scenario.
    """
    kind = raw["strategy"]["kind"] if isinstance(raw["strategy"], dict) else raw["strategy"]
    size = raw["cluster"]["world_size"]
    batch = {"microbatch": microbatch}
    if strategy_class(kind).execution == "single_process":  # which cuts one batch for all devices
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
