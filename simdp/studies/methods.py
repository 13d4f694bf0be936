"""Training methods on a cluster, and the scenario of each.

`simdp.studies.fits` compares them and `simdp.studies.first_scenario` writes one to a file. Both
take the scenario from here, so that a run matches the table of ``fits``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from simdp.cluster import MAX_WORLD_SIZE, Cluster
from simdp.cluster.hardware import (
    Machine,
    describe_machine,
    device_option,
    machines_with,
    read_machine,
)
from simdp.errors import LedBy, ScenarioError, unknown_name
from simdp.scenario import checked
from simdp.scenario.overrides import Raw
from simdp.scenario.root import Scenario
from simdp.spec import problems
from simdp.strategies import AnyStrategy, strategy_class
from simdp.strategies.base import Strategy
from simdp.workload.layers.linear import Linear, TransposedLinear
from simdp.workload.models import AnyModel, read_model
from simdp.workload.models.base import Model
from simdp.workload.precision import AnyPrecision

STEPS = 4  # the first is warm-up; the others are equal where only times are computed

DATASETS = (None, "images", "tokens", "digits", "blobs", "regression")
"""Data sets in order of preference: the first that the model accepts is taken, None if none is
needed."""

SGD: Raw = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}
"""Optimizer of convolutional networks, as in torchvision's references."""

STRATEGIES_TRIED: dict[str, Any] = {
    "ddp": "ddp",
    "fsdp": "fsdp",
    "hsdp": "hsdp",
    "zero1": {"kind": "zero1", "communication": "deepspeed"},
    "zero2": {"kind": "zero2", "communication": "deepspeed"},
    "zero3": "zero3",
}
"""Strategies of ``fits``, the best known first, as written in YAML: ZeRO's stages 1 and 2
communicate as in DeepSpeed."""

OFFLOADED: tuple[Any, ...] = (
    {"kind": "zero2", "communication": "deepspeed", "offload_optimizer": "cpu"},
    {"kind": "zero3", "offload_optimizer": "cpu", "offload_param": "cpu"},
)
"""ZeRO-Offload, and ZeRO-Infinity's first tier."""

ADAPTED = ("ddp", "fsdp")  # strategies that LoRA is tried with

RECOMPUTE = ("none", "selective", "blocks")

METHODS = ("full", "offload", "lora", "qlora")
"""Train all weights; all weights with optimizer states in host memory; adapters; adapters of a
model in 4 bits."""

ADAPTER_TARGETS = (
    ("q_proj", "v_proj"),
    ("c_attn",),
    ("query_key_value",),
    ("Wqkv",),
    ("query", "value"),
    ("q", "v"),
)
"""Names of linear layers that get an adapter, as in PEFT (peft/utils/constants.py,
TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING)."""

OWN_LINK, OWN_NETWORK = "pcie4-x16", "100gbe"
"""Links assumed for nodes with a device that no machine of the catalogue has."""


def kind_of(value: object) -> str:
    """Kind of a model or strategy as in YAML."""
    return str(value.get("kind", "") if isinstance(value, dict) else value)


class FitsRequest(NamedTuple):
    """Options of ``python -m simdp fits`` and ``init``."""

    model: Any
    """As in YAML."""
    gpus: int | None
    """Number of ranks; None for the least that fits."""
    machine: str | None = None
    """One of the two: a machine of the catalogue or a YAML file of ``calibrate``, or a device with
    assumed links."""
    device: str | None = None
    """One of the two: a machine of the catalogue or a YAML file of ``calibrate``, or a device with
    assumed links."""
    sequence_length: int | None = None
    """Tokens of a sample."""
    microbatch: int | None = None
    """Samples of a micro-batch, by default as many as fit."""
    node_size: int | None = None
    """Devices of a node, in place of the machine's."""
    precision: Any = None
    """As in YAML; by default 16-bit weights with a 32-bit master where devices support it."""
    strategy: Any = None
    """As in YAML; by default each of `STRATEGIES_TRIED`."""
    recompute: str | None = None
    """One of `RECOMPUTE`; by default each."""
    method: str | None = None
    """One of `METHODS`; by default each."""
    host_memory: str | None = None
    """Host memory of a node as in YAML, in place of the machine's."""

    @property
    def title(self) -> str:
        """Name of the model."""
        return kind_of(self.model)


class TrainingNodes(NamedTuple):
    """Nodes to train on.

    ``cluster`` has the keys of a scenario's cluster, without ``world_size``; ``figures`` the
    machine's keys, updated with these; ``origin`` their source in words, such as what was
    assumed; ``assumed`` the same, None where a machine was given.
    """

    title: str
    cluster: Raw
    figures: Raw
    origin: str
    assumed: str | None

    @property
    def machine(self) -> str | None:
        """The machine whose nodes these are; None where they are assumed for a device."""
        return self.cluster.get("machine")

    @property
    def per_node(self) -> int:
        """Devices of a node."""
        return int(self.figures.get("devices_per_node", 1))

    @property
    def is_networked(self) -> bool:
        """Whether several nodes are possible."""
        return "inter_node" in self.figures

    def check_size(self, gpus: int) -> int:
        """Return a number of ranks if it is part of a node or whole nodes; else a ScenarioError."""
        if gpus > MAX_WORLD_SIZE:
            raise ScenarioError(f"--gpus {gpus}: is out of range; it must be <= {MAX_WORLD_SIZE}.")
        per_node, networked = self.per_node, self.is_networked
        if 1 <= gpus <= per_node or (gpus > 0 and gpus % per_node == 0 and networked):
            return gpus
        most = f"1 to {per_node}"
        if not networked:
            raise ScenarioError(
                f"--gpus {gpus}: {self.title} is one node of {per_node}, without a network; "
                f"give {most}."
            )
        raise ScenarioError(
            f"--gpus {gpus}: {self.title} has nodes of {per_node}; give {most}, or whole nodes."
        )

    @property
    def usual_size(self) -> int:
        """Default number of devices: four nodes, or the one node without a network."""
        return self.per_node * (4 if self.is_networked else 1)

    def sized(self, gpus: int) -> Cluster:
        """Return the cluster of so many devices, without stragglers and failures."""
        cluster = {**self.figures, "world_size": gpus, "stragglers": [], "failures": []}
        base = Path(self.machine or "").parent
        return Cluster.model_validate(cluster, context={"base": base})

    @property
    def usual_precision(self) -> Any:
        """16-bit mixed precision where the device supports it, bfloat16 first; else ``full``."""
        (device,) = self.sized(1).devices()
        dtypes = [dtype for dtype in ("bfloat16", "float16") if dtype in device.peak]
        return {"kind": "mixed", "dtype": dtypes[0]} if dtypes else "full"


def known_machine(name: str) -> Machine:
    """Read the machine given as ``--machine``; a ScenarioError if it does not exist."""
    with LedBy("--machine: "):
        return read_machine(name, Path())


def known_value(option: str, value: object) -> Any:
    """Validate a model, strategy or precision; return it with the usual spelling of its kind.

    A precision has its 16-bit dtype as well; a model keeps its spelling. A
    ScenarioError has every problem.
    """
    fields = {"--strategy": AnyStrategy, "--precision": AnyPrecision}
    field: Any = fields.get(option, AnyModel)
    try:
        made = TypeAdapter(field).validate_python(value)
    except ValidationError as error:
        colon = [f"{'.' if p.place else ': '}{p.line}" for p in problems(error, value)]
        raise ScenarioError([f"{option}{line}" for line in colon]) from None
    if option not in fields:
        return value
    given = {**value, "kind": made.kind} if isinstance(value, dict) else {"kind": made.kind}
    if option == "--precision" and made.low:  # as in a file, and so that the output has it
        given.setdefault("dtype", made.low)
    return given if set(given) - {"kind"} else made.kind


def known_choice(option: str, value: str | None, known: Sequence[str]) -> None:
    """Check that a value is one of a few words; else a ScenarioError."""
    if value is not None and value not in known:
        raise ScenarioError(f"{option}: {unknown_name(option[2:], value, list(known))}")


def machine_with(device: str, with_own_nodes: bool = False) -> str:
    """Choose the machine of the catalogue with the links to assume for a device.

    The usual ones come first, of these NVIDIA's own nodes, then those with the most devices. A
    ScenarioError if no machine has it; ``with_own_nodes``: whether ``--node-size`` may assume one.
    """
    machines = _machines_with(device)
    if not machines:
        own = f"add --node-size 8 to assume {OWN_LINK} and {OWN_NETWORK}, or "
        raise ScenarioError(
            f"--device {device}: no machine of the catalogue has it, and so its links are not "
            f"known; {own if with_own_nodes else ''}give --machine FILE.yaml with its cluster."
        )
    return machines[0]


def _machines_with(device: str) -> list[str]:
    ranked = []
    for name, machine in machines_with(device).items():
        cluster = machine.cluster
        per_node = cluster.get("devices_per_node", 1)
        networked, is_dgx = "inter_node" in cluster, name.startswith("dgx")
        ranked.append((not machine.usual, not networked, not is_dgx, -per_node, name))
    return [name for *_, name in sorted(ranked)]


def place_of(
    machine: str | None, device: str | None, node_size: int | None = None
) -> TrainingNodes:
    """Find the nodes of a machine, or assume nodes for a device.

    A ScenarioError if not exactly one of machine and device is given, or it does not exist.
    """
    if (machine is None) == (device is None):
        which = "neither" if machine is None else "both"
        raise ScenarioError(f"--device, --machine: {which} given; give one of them.")
    device = device_option(device) or ""
    if machine is None and node_size is not None and not _machines_with(device):
        return _assumed_nodes(device, node_size)
    name = machine or machine_with(device, with_own_nodes=True)
    cluster: Raw = {"machine": name}
    figures = dict(known_machine(name).cluster)
    if node_size is not None and node_size != figures.get("devices_per_node", 1):
        cluster["devices_per_node"] = figures["devices_per_node"] = node_size
    origin = f"{name}: {describe_machine(name)}" + (f"; nodes of {node_size}" if node_size else "")
    if machine is not None:
        return TrainingNodes(Path(name).stem, cluster, figures, f"on {origin}", None)
    origin = f"links as in {origin}"
    return TrainingNodes(name, cluster, figures, origin, origin)


def _assumed_nodes(device: str, node_size: int) -> TrainingNodes:
    """Assume nodes for a device that no machine has."""
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
    return TrainingNodes(device, dict(figures), figures, assumed, assumed)


class Method(NamedTuple):
    """Settings of one training method, as in YAML; ``name`` is one of `METHODS`."""

    name: str
    strategy: Any
    precision: Any
    recompute: str
    lora: Raw | None = None
    quantized: Raw | None = None

    @property
    def kind(self) -> str:
        """Kind of the strategy."""
        return kind_of(self.strategy)

    @property
    def of_workload(self) -> Raw:
        """The method's keys of a workload."""
        keys: Raw = {"precision": self.precision, "recompute": self.recompute}
        for key in ("lora", "quantized"):
            if (value := getattr(self, key)) is not None:
                keys[key] = value
        return keys

    @property
    def settings(self) -> Raw:
        """The method's settings by dotted key."""
        keys = {f"workload.{key}": value for key, value in self.of_workload.items()}
        return {"strategy": self.strategy, **keys}


def methods(request: FitsRequest, precision: object) -> Iterator[tuple[Method, ...]]:
    """Yield groups of methods to try; within a group only recomputation differs, and increases.

    The request restricts methods, strategies and recomputation; all use ``precision``.
    """
    for name in (request.method,) if request.method else METHODS:
        for strategy, more in _strategies_of(request, name):
            kinds = (request.recompute,) if request.recompute else RECOMPUTE
            yield tuple(Method(name, strategy, precision, kind, **more) for kind in kinds)


def _strategies_of(request: FitsRequest, name: str) -> Iterator[tuple[Any, Raw]]:
    """Yield the strategies of a method, each with additional keys of the workload."""
    more: Raw = {}
    if name in ("lora", "qlora"):
        adapters = _adapters(request.model, in_4_bits=name == "qlora")
        if adapters is None:
            return
        more = adapters
    kinds: Sequence[Any] = tuple(STRATEGIES_TRIED)
    if name == "offload":
        kinds = OFFLOADED
    elif name != "full":
        kinds = ADAPTED
    wanted = request.strategy
    if isinstance(wanted, dict):
        kinds = [wanted] if name != "offload" else []
    elif wanted is not None:
        same = [way for way in kinds if wanted == kind_of(way)]
        kinds = same or ([wanted] if name != "offload" else [])
    for kind in kinds:
        yield (STRATEGIES_TRIED.get(kind, kind) if isinstance(kind, str) else kind), more


def _adapters(model: object, in_4_bits: bool) -> Raw | None:
    """The workload keys of adapters and 4-bit layers; None where no layer of the model matches."""
    made = read_model(model)
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


def raw_of(request: FitsRequest, place: TrainingNodes, gpus: int, method: Method) -> Raw:
    """Make a method's scenario without batch and data."""
    model = request.model
    if request.sequence_length is not None:
        given = model if isinstance(model, dict) else {"kind": model}
        model = {**given, "sequence_length": request.sequence_length}
    cluster = {**place.cluster, "world_size": gpus}
    if request.host_memory is not None:
        cluster["host_memory"] = request.host_memory
    return {
        "name": f"{request.title}_{place.title}_{gpus}",
        "cluster": cluster,
        "workload": {"model": model, "steps": _steps(method), **method.of_workload},
        "strategy": method.strategy,
        "numerics": False,
    }


def _steps(method: Method) -> int:
    """Number of steps: a warm-up and whole periods of the strategy."""
    field: Any = AnyStrategy
    strategy: Strategy = TypeAdapter(field).validate_python(method.strategy)
    return strategy.whole_periods(STEPS)


def with_data(raw: Raw, microbatch: int) -> tuple[Scenario, Raw]:
    """Add a batch and the first data set that the model accepts; return the scenario and its data.

    A ScenarioError if the scenario is invalid with every data set.
    """
    size = raw["cluster"]["world_size"]
    batch = {"microbatch": microbatch}
    if strategy_class(kind_of(raw["strategy"])).in_one_process:  # one batch for all devices
        batch = {"global_batch": microbatch * size}
    refused: ScenarioError | None = None
    for data in DATASETS:
        workload = {**raw["workload"], **batch}
        if data is not None:
            samples = {"num_samples": microbatch * size * STEPS}
            workload["dataset"] = {"kind": data, **samples}
        try:
            scenario = checked_here({**raw, "workload": workload})
            model = scenario.workload.model
            workload["optimizer"] = usual_optimizer(model)
            if model.moved_to_sdpa:
                workload.setdefault("attention", "flash")
            changed = {**raw, "workload": workload}
            return checked_here(changed), changed
        except ScenarioError as error:
            others = [line for line in error.problems if "workload.dataset" not in line]
            refused = ScenarioError(others) if others else refused or error
    assert refused is not None
    raise refused


def usual_optimizer(model: Model) -> Raw | str:
    """Return the optimizer that a model is usually trained with, as in YAML."""
    return SGD if model.graph.family == "convolutional" else "adamw"


def checked_here(raw: Raw) -> Scenario:
    """Validate relative to the current folder, since the file's folder may not exist yet."""
    return checked(raw, Path())
