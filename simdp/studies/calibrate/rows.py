"""Scenarios with ``measured:`` from a table with one row for each measured run."""

from __future__ import annotations

import copy
import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from pydantic import ValidationError

from simdp.arrays import grouped
from simdp.cluster.hardware import (
    DEVICES,
    MACHINES,
    catalogue_device,
    close_devices,
    is_file,
    is_known,
)
from simdp.errors import ScenarioError, UnitError, shown, unknown_name
from simdp.files import format_yaml, parse_yaml, read_text
from simdp.results.calibration import LeftOutRow, RowsScenario, TableScenarios
from simdp.scenario import checked
from simdp.scenario.overrides import Raw, move_paths, set_key
from simdp.strategies import strategy_class
from simdp.studies.methods import STRATEGIES_TRIED, kind_of, place_of, usual_optimizer
from simdp.units import format_percent, parse_percent
from simdp.workload.models import MODELS, PRESETS, read_model

# Columns ------------------------------------------------------------------------------------------

COLUMNS: dict[str, str] = {
    "model": "model_name network arch architecture workload.model",
    "machine": "cluster system instance instance_type cluster.machine",
    "device": "gpu gpu_type gpu_model gpu_name accelerator cluster.device",
    "gpus": "num_gpus n_gpus ngpus gpu_count number_of_gpus num_devices devices world_size ranks "
    "num_ranks cluster.world_size",
    "nodes": "num_nodes n_nodes nnodes number_of_nodes",
    "gpus_per_node": "nproc_per_node devices_per_node cluster.devices_per_node",
    "microbatch": "batch batch_size mbs micro_batch micro_batch_size microbatch_size batch_per_gpu "
    "batch_size_per_gpu per_gpu_batch_size batch_size_per_device per_device_batch_size "
    "per_device_train_batch_size local_batch_size workload.microbatch",
    "global_batch": "gbs global_batch_size total_batch_size effective_batch_size "
    "workload.global_batch",
    "grad_accum": "gradient_accumulation gradient_accumulation_steps grad_accum_steps "
    "accumulation_steps workload.grad_accum",
    "precision": "dtype data_type mixed_precision workload.precision",
    "strategy": "parallelism sharding method",
    "sequence_length": "seq_length seq_len seqlen max_seq_length context_length",
    "recompute": "activation_checkpointing gradient_checkpointing activation_recomputation "
    "workload.recompute",
    "optimizer": "optim workload.optimizer",
    "noise": "measured.noise",
    "role": "",
    "source": "reference measured.source",
    "note": "notes comment comments",
}
"""Columns with a meaning of their own, and their other spellings."""

_NAMES = {name: column for column, more in COLUMNS.items() for name in (column, *more.split())}

SECTIONS = ("cluster", "workload", "strategy", "collectives", "seed")
"""Sections of a scenario whose dotted keys may be columns."""

NEEDED = {
    "model": "model",
    "machine": "machine or device",
    "gpus": "gpus (or nodes and gpus_per_node)",
    "microbatch": "microbatch or global_batch",
    "throughput": "a throughput or a step time with its unit, such as samples/s, tokens/s/GPU or "
    "step_time [ms]",
}
"""Columns that every table needs, in words."""

SHOWN_REASONS = 20  # most rows that an error names if none becomes a point

DATA_SHEET = "data sheet"


def column_name(head: str) -> str:
    """Return the column of `COLUMNS` that a head means, or a dotted key; empty if neither."""
    plain = head.strip()
    if plain.split(".")[0] in SECTIONS and "." in plain and " " not in plain:
        return _NAMES.get(plain, plain)
    words = re.sub(r"^#\s*", "num_", plain.lower())
    return _NAMES.get(re.sub(r"[^a-z0-9]+", "_", words).strip("_"), "")


class FigureUnit(NamedTuple):
    """Quantity of a figure: ``time`` [s], ``samples``, ``tokens`` or ``steps`` per second.

    ``scale`` converts to these units; ``per_gpu``: of one GPU.
    """

    kind: str
    scale: float
    per_gpu: bool


_RATE = re.compile(
    r"(?<![a-z/])(?:(k|m)\s*)?(samples?|images?|imgs?|seqs?|sequences?|sentences?|examples?|tokens?|tok"
    r"|steps?|iterations?|iters?|its?|batch|batches)\s*/\s*(?:s|secs?|seconds?)(?![a-z])"
)
_TIME = re.compile(
    r"(?<![a-z/])(us|ms|msecs?|milliseconds?|s|secs?|seconds?|min|minutes?)(?![a-z])"
)
_STEP = re.compile(r"(?<![a-z])(?:step|iteration|iter|it|batch)s?(?![a-z])")
_SPEED = re.compile(r"(?<![a-z])(?:throughput|speed|performance)(?![a-z])")
_TIMES = {"us": 1e-6, "ms": 1e-3, "msec": 1e-3, "millisecond": 1e-3, "min": 60.0, "minute": 60.0}
_NUMBER = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*(.*)")


def figure_unit(text: str, in_cell: bool = False) -> FigureUnit | None:
    """Read the unit of a throughput or step time, in a head or behind the number of a cell.

    None if it is none. A head that names the quantity without its unit has a ``scale`` of 0.
    """
    plain = re.sub(r"\bper\s+", "/", re.sub(r"[_\-]+", " ", text.lower())).replace(" /", "/")
    per_gpu = re.search(r"/\s*(gpu|device|rank|card|accelerator)", plain) is not None
    if rate := _RATE.search(plain):
        prefix, what = rate.groups()
        kind = "tokens" if what.startswith("tok") else "samples"
        kind = "steps" if re.match(r"step|it|batch", what) else kind
        return FigureUnit(kind, {"k": 1e3, "m": 1e6}.get(prefix, 1.0), per_gpu)
    if in_cell or _STEP.search(plain):
        unit = _TIME.search(plain)
        if unit is not None:
            name = unit[1].rstrip("s") if len(unit[1]) > 2 else unit[1]
            return FigureUnit("time", _TIMES.get(name, 1.0), False)
        if not in_cell and re.search(r"(?<![a-z])time|latency", plain):
            return FigureUnit("time", 0.0, False)
    if not in_cell and _SPEED.search(plain):
        return FigureUnit("samples", 0.0, per_gpu)
    return None


# Cells --------------------------------------------------------------------------------------------


class _RowError(ValueError):
    """A row cannot become a point."""


def _number(column: str, cell: str) -> tuple[float, str]:
    """Read a number, perhaps with commas between thousands, and the text behind it."""
    match = _NUMBER.fullmatch(cell)
    try:
        value = float(match[1].replace(",", "")) if match else 0.0
    except ValueError:
        value = 0.0
    if match is None or not 0 < value < float("inf"):
        raise _RowError(f"{column}: {shown(cell)} is not a number above 0; write such as 1234.5.")
    return value, match[2]


def _whole(column: str, cell: str) -> int:
    try:
        value, rest = _number(column, cell)
    except _RowError:
        value, rest = 0.5, ""
    if rest or value != int(value):
        wrong = f"{shown(cell)} is not a whole number of 1 or more; write such as 8."
        raise _RowError(f"{column}: {wrong}")
    return int(value)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", text.lower())


def _yaml(column: str, cell: str) -> Any:
    try:
        return parse_yaml(cell, column)
    except ScenarioError as error:
        raise _RowError(error.problems[0]) from None


def model_value(cell: str) -> Any:
    """Read a model: as in YAML, or a catalogue name in another spelling, such as ``ResNet-50``."""
    known = {_plain(name): name for name in (*MODELS, *PRESETS.names())}
    return known.get(_plain(cell)) or _yaml("model", cell)


_DTYPES = {
    **dict.fromkeys(("fp16", "float16", "half", "16", "amp", "ampfp16", "mixedprecision"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16", "ampbf16"), "bf16"),
    **dict.fromkeys(("fp32", "float32", "32", "single", "full"), "full"),
    "tf32": "tf32",
}
"""Spellings of precisions."""

SHARDED = ("fsdp", "fsdp1", "hsdp", "zero1", "zero2", "zero3")
"""Strategies whose 16-bit training has 16-bit weights; others run torch.autocast."""


def precision_value(cell: str, kind: str) -> tuple[Any, bool]:
    """Read a precision of a kind of strategy, and whether products of float32 run in TF32."""
    name = _DTYPES.get(_plain(cell), "") if cell else "full"
    if name in ("full", "tf32"):
        return "full", name == "tf32"
    if not name:
        return _yaml("precision", cell), False
    dtype = "float16" if name == "fp16" else "bfloat16"
    policy = "mixed" if kind in SHARDED and _plain(cell) != "amp" else "amp"
    return {"kind": policy, "dtype": dtype}, False


_STRATEGIES = {
    **dict.fromkeys(("ddp", "torchddp", "distributeddataparallel", "pytorchddp"), "ddp"),
    **dict.fromkeys(("dp", "dataparallel"), "data_parallel"),
    **dict.fromkeys(("fsdp", "fsdp2", "fullshard"), "fsdp"),
    **dict.fromkeys(("hsdp", "hybridshard"), "hsdp"),
    **dict.fromkeys(("single", "none", "no"), "single"),
}
"""Spellings of strategies."""


def strategy_value(cell: str) -> Any:
    """Read a strategy: as in YAML, or a usual name; ``ddp`` without any."""
    if not cell:
        return "ddp"
    stage = re.fullmatch(r"(?:deepspeed)?zero(?:stage)?-?([123])", _plain(cell))
    if stage and cell != stage[0]:
        return STRATEGIES_TRIED[f"zero{stage[1]}"]
    return _STRATEGIES.get(_plain(cell)) or _yaml("strategy", cell)


def recompute_value(cell: str) -> str:
    """Read which activations backward computes again."""
    plain = cell.strip().lower()
    if plain in ("", "no", "false", "0", "off"):
        return "none"
    return "blocks" if plain in ("yes", "true", "1", "on", "full") else plain


def _is_alone(strategy: object) -> bool:
    """Whether a strategy trains on one device only."""
    return strategy_class(kind_of(strategy)).max_ranks == 1


# Rows ---------------------------------------------------------------------------------------------


class RowSetup(NamedTuple):
    """What is equal for all rows of a scenario, as in YAML."""

    cluster: Raw  # without its size
    assumed: str | None
    model: Any
    precision: str  # as in the cell
    recompute: str
    optimizer: Any  # None for the model's usual one
    keys: Raw  # further settings by dotted key


class MeasuredRow(NamedTuple):
    """A row: what its scenario is made of, its own size and batch, and its figure."""

    line: int
    setup: RowSetup
    strategy: Any  # None on one GPU without a strategy: it belongs to every one
    gpus: int
    microbatch: int
    grad_accum: int
    kind: str  # of its figure: time, samples, tokens or steps
    value: float  # step time [s], or figure of all GPUs per second
    role: str | None
    note: str | None
    source: str | None
    noise: float

    @property
    def samples(self) -> int:
        """Samples of a step of all GPUs."""
        return self.gpus * self.microbatch * self.grad_accum

    @property
    def size(self) -> tuple[int, int, int]:
        """What differs between the points of a scenario."""
        return self.gpus, self.microbatch, self.grad_accum

    def seconds(self, tokens: float) -> float:
        """Step time [s]; ``tokens`` of a sample."""
        if self.kind == "time":
            return self.value
        return {"samples": self.samples, "tokens": self.samples * tokens, "steps": 1.0}[
            self.kind
        ] / self.value


@dataclass(frozen=True)
class RowTable:
    """A table: columns by meaning, columns of figures, and those without a meaning."""

    path: Path
    width: int  # number of columns
    lines: list[tuple[int, list[str]]]
    places: dict[str, int]
    figures: list[tuple[int, str, FigureUnit]]
    unused: list[str]


def read_table(path: Path) -> RowTable:
    """Read a CSV, TSV or semicolon-separated table; a ScenarioError if it lacks a column."""
    text = read_text(path, "a table of measurements is CSV or TSV")
    lines = ["" if line.startswith("#") else line for line in text.splitlines()]
    first = next((line for line in lines if line.strip()), "")
    delimiter = max("\t;,", key=first.count) if first else ","
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except csv.Error as error:
        raise ScenarioError(f"{path}:{reader.line_num}: is not valid CSV: {error}.") from None
    rows = [(number, cells) for number, cells in rows if any(cells)]
    heads = rows[0][1] if rows else []
    places, figures, unused = _columns(path, heads)
    if len(rows) < 2:
        raise ScenarioError(f"{path}: has no rows below its columns; add one for each run.")
    return RowTable(path, len(heads), rows[1:], places, figures, unused)


def _columns(
    path: Path, heads: Sequence[str]
) -> tuple[dict[str, int], list[tuple[int, str, FigureUnit]], list[str]]:
    places, figures, unused = dict[str, int](), list[tuple[int, str, FigureUnit]](), list[str]()
    for place, head in enumerate(heads):
        name, unit = column_name(head), figure_unit(head)
        if name in places:
            both = f"{shown(heads[places[name]])} and {shown(head)}"
            raise ScenarioError(f"{path}: columns {both} are both {name}; keep one of them.")
        if name:
            places[name] = place
        elif unit is not None:
            figures.append((place, head, unit))
        elif head:
            unused.append(head)
    there = {
        "machine": "machine" in places or "device" in places,
        "gpus": "gpus" in places or {"nodes", "gpus_per_node"} <= places.keys(),
        "microbatch": "microbatch" in places or "global_batch" in places,
        "throughput": bool(figures),
    }
    lacks = [need for key, need in NEEDED.items() if not there.get(key, key in places)]
    if lacks:
        names = ", ".join(shown(head) for head in heads if head) or "none"
        raise ScenarioError(
            f"{path}: lacks a column for {'; '.join(lacks)}. Columns found: {names}."
        )
    return places, figures, unused


class _Cells(NamedTuple):
    """Cells of a row by column of `COLUMNS`; empty where a row has none."""

    model: str = ""
    machine: str = ""
    device: str = ""
    gpus: str = ""
    nodes: str = ""
    gpus_per_node: str = ""
    microbatch: str = ""
    global_batch: str = ""
    grad_accum: str = ""
    precision: str = ""
    strategy: str = ""
    sequence_length: str = ""
    recompute: str = ""
    optimizer: str = ""
    noise: str = ""
    role: str = ""
    source: str = ""
    note: str = ""

    def whole(self, column: str) -> int | None:
        """Read a whole number of 1 or more; None from an empty cell."""
        cell = getattr(self, column)
        return _whole(column, cell) if cell else None


def _row(table: RowTable, line: int, cells: Sequence[str]) -> MeasuredRow:
    """Read a row; a _RowError if it cannot become a point."""
    if any(cells[table.width :]):
        raise _RowError(
            f"has {len(cells)} cells for {table.width} columns; quote cells with commas in them."
        )
    at = {name: cells[place] for name, place in table.places.items() if place < len(cells)}
    cell = _Cells(**{name: text for name, text in at.items() if name in COLUMNS})
    if not cell.model:
        raise _RowError("model: is empty; give a name of `list models`.")
    gpus = _gpus(cell)
    microbatch, grad_accum = _batch(cell, gpus)
    kind, value = _figure(table, cells, gpus)
    cluster, assumed = _cluster(table.path.parent, cell, gpus)
    strategy = strategy_value(cell.strategy)
    is_free = gpus == 1 and (not cell.strategy or _is_alone(strategy))
    if gpus > 1 and _is_alone(strategy):
        raise _RowError(f"strategy: single is for one GPU, not {gpus}; write such as ddp.")
    model = model_value(cell.model)
    setup = RowSetup(
        cluster,
        assumed,
        model,
        cell.precision,
        recompute_value(cell.recompute),
        _yaml("optimizer", cell.optimizer) if cell.optimizer else None,
        {name: _yaml(name, text) for name, text in at.items() if name not in COLUMNS and text},
    )
    if (length := cell.whole("sequence_length")) is not None:
        named = model if isinstance(model, dict) else {"kind": model}
        setup = setup._replace(model={**named, "sequence_length": length})
    role = cell.role.lower() or None
    if role not in (None, "calibration", "predicted"):
        raise _RowError(f"role: {unknown_name('role', role, ('calibration', 'predicted'))}")
    try:
        noise = parse_percent(cell.noise) if cell.noise else 0.0
    except UnitError as error:
        raise _RowError(f"noise: {error}") from None
    return MeasuredRow(
        line,
        setup,
        None if is_free else strategy,
        gpus,
        microbatch,
        grad_accum,
        kind,
        value,
        role,
        cell.note or None,
        cell.source or None,
        noise,
    )


def _gpus(cell: _Cells) -> int:
    if (gpus := cell.whole("gpus")) is not None:
        return gpus
    if cell.nodes and cell.gpus_per_node:
        return _whole("nodes", cell.nodes) * _whole("gpus_per_node", cell.gpus_per_node)
    raise _RowError("gpus: is empty; give the number of GPUs of the run.")


def _cluster(base: Path, cell: _Cells, gpus: int) -> tuple[Raw, str | None]:
    """Cluster of a row without its size, of a machine or for a device; and what is assumed."""
    name, device = cell.machine, cell.device
    nodes, size = cell.whole("nodes") or 1, cell.whole("gpus_per_node")
    if size is None and nodes > 1:
        if gpus % nodes:
            raise _RowError(f"nodes: {gpus} GPUs are not {nodes} equal nodes; correct one of them.")
        size = gpus // nodes
    if name and not is_file(name) and not is_known(name):
        if is_known(name.lower()):
            name = name.lower()
        elif catalogue_device(name) and not device:
            name, device = "", name
        else:
            raise _RowError(f"machine: {unknown_name('machine', name, MACHINES.names())}")
    if not name and not device:
        raise _RowError("machine: is empty; give a machine, or a device.")
    device_name = catalogue_device(device) if device else None
    if device and device_name is None:
        known = DEVICES.names()
        raise _RowError(f"device: {unknown_name('device', device, known, close_devices(device))}")
    file = str(base / name) if is_file(name) else name
    try:
        place = place_of(file or None, None if name else device_name, size)
    except ScenarioError as error:
        problem = error.problems[0].removeprefix("--machine: ").removeprefix("--device ")
        raise _RowError(f"{'machine' if name else 'device'}: {problem}") from None
    cluster = {**place.cluster, **({"machine": name} if name else {})}
    if name and device_name and place.figures.get("device") != device_name:
        cluster |= {"device": device_name}
    return cluster, place.assumed


def _batch(cell: _Cells, gpus: int) -> tuple[int, int]:
    """Samples per GPU and micro-step, and micro-steps per step."""
    total, micro, accum = map(cell.whole, ("global_batch", "microbatch", "grad_accum"))
    if total is None and micro is None:
        raise _RowError("microbatch: is empty; give the batch of a GPU, or global_batch.")
    if total is None:
        assert micro is not None
        return micro, accum or 1
    parts = gpus * (accum or 1) if micro is None else gpus * micro
    if total % parts or (micro is not None and accum and total != parts * accum):
        factors = f"{gpus} GPUs"
        factors += f" x microbatch {micro}" if micro else ""
        factors += f" x grad_accum {accum}" if accum else ""
        raise _RowError(
            f"global_batch: {total} is not a multiple of {factors}; correct one of them."
        )
    return (total // parts, accum or 1) if micro is None else (micro, total // parts)


def _figure(table: RowTable, cells: Sequence[str], gpus: int) -> tuple[str, float]:
    """Read the first figure of a row: its kind, and its value of all GPUs."""
    empty = ("", "-", "n/a", "na", "none", "nan", "oom")
    for place, head, unit in table.figures:
        cell = cells[place] if place < len(cells) else ""
        if cell.lower() in empty:
            continue
        value, rest = _number(head, cell)
        if rest:
            own = figure_unit(rest, in_cell=True)
            if own is None:
                raise _RowError(
                    f"{head}: {shown(rest)} is no unit of a throughput or step time; write such as "
                    "820 samples/s or 97 ms."
                )
            unit = own._replace(per_gpu=own.per_gpu or unit.per_gpu)
        if not unit.scale:
            raise _RowError(
                f"{head}: {cell} has no unit; write it behind the number or in the head, such as "
                f"{shown(f'{head} [ms]' if unit.kind == 'time' else f'{head} [samples/s]')}."
            )
        many = gpus if unit.per_gpu and unit.kind in ("samples", "tokens") else 1
        return unit.kind, value * unit.scale * many
    heads = " or ".join(head for _, head, _ in table.figures)
    raise _RowError(f"{heads}: is empty; give what was measured.")


# Scenarios ----------------------------------------------------------------------------------------

COMPUTES = ("measured", "roofline")  # from rows of one GPU; by the device's data sheet


def scenarios_from_table(
    path: Path, folder: Path, compute: str | None = None, source: str | None = None
) -> TableScenarios:
    """Group the rows of a table into scenarios with ``measured:``; writes nothing.

    Parameters
    ----------
    path : Path
        CSV or TSV, with columns of `COLUMNS`, throughputs or step times, and dotted keys.
    folder : Path
        Later place of the scenarios, which paths in them are relative to.
    compute : {"measured", "roofline"}, optional
        From rows of one GPU, or by the device's data sheet; by default measured where a scenario
        has such rows.
    source : str, optional
        Of the figures; default: the name of the table.

    Returns
    -------
    TableScenarios
        The scenarios, and the rows that cannot become points, with the reasons.

    Raises
    ------
    ScenarioError
        If the table lacks a column, or no row remains.
    """
    if compute is not None and compute not in COMPUTES:
        raise ScenarioError(f"--compute: {unknown_name('compute', compute, COMPUTES)}")
    table = read_table(path)
    rows, left_out = list[MeasuredRow](), dict[int, str]()
    for line, cells in table.lines:
        try:
            rows.append(_row(table, line, cells))
        except _RowError as error:
            left_out[line] = str(error)
    made, used = list[RowsScenario](), set[str]()
    for group in _groups(rows):
        scenario, refused = _GroupedRows(table.path, folder, compute, source).build(group, used)
        left_out |= refused
        made += [] if scenario is None else [scenario]
    kept = set(chain.from_iterable(scenario.lines for scenario in made))
    reasons = tuple(LeftOutRow(n, why) for n, why in sorted(left_out.items()) if n not in kept)
    if not made:
        lines = [f"{path}: line {row.line}: {row.reason}" for row in reasons[:SHOWN_REASONS]]
        more = len(reasons) - SHOWN_REASONS
        lines += [f"{path}: and {more} more rows, none of which is a point."] if more > 0 else []
        raise ScenarioError(lines)
    defaults = {"precision": "full", "strategy": "ddp"}
    assumed = [f"{name} {value}" for name, value in defaults.items() if name not in table.places]
    assumed += [scenario.assumed for scenario in made if scenario.assumed]
    unique = tuple(dict.fromkeys(assumed))
    return TableScenarios(str(path), tuple(made), reasons, tuple(table.unused), unique)


NODE_SIZE = "devices_per_node"  # key of a cluster that makes no difference to one GPU


def _groups(rows: Sequence[MeasuredRow]) -> Iterator[list[MeasuredRow]]:
    """Group rows by scenario.

    A row of one GPU belongs to each scenario of its setup and strategy, or of its setup alone if it
    has no strategy.
    """
    groups: dict[str, list[MeasuredRow]] = {}
    alone: dict[tuple[str, str], list[MeasuredRow]] = {}
    joined = set[tuple[str, str]]()
    for row in rows:
        place = _setup(row), json.dumps(row.strategy, sort_keys=True)
        if row.gpus == 1:
            alone.setdefault(place, []).append(row)
        else:
            key = json.dumps([row.setup._asdict(), row.strategy], sort_keys=True)
            groups.setdefault(key, []).append(row)
    for group in groups.values():
        strategy = json.dumps(group[0].strategy, sort_keys=True)
        own = [(_setup(group[0]), name) for name in (strategy, "null")]
        joined.update(own)
        yield sorted(
            [*group, *(row for place in own for row in alone.get(place, ()))],
            key=attrgetter("line"),
        )
    for place, rest in alone.items():
        if place not in joined:
            yield rest


def _setup(row: MeasuredRow) -> str:
    """Key of a row's setup without the size of nodes."""
    nodes = {key: value for key, value in row.setup.cluster.items() if key != NODE_SIZE}
    return json.dumps(row.setup._replace(cluster=nodes)._asdict(), sort_keys=True)


class _GroupedRows:
    """Makes the scenario of a group of rows."""

    def __init__(self, path: Path, folder: Path, compute: str | None, source: str | None) -> None:
        self.path, self.folder, self.source = path, folder, source
        self.compute: str | None = compute

    def build(
        self, rows: list[MeasuredRow], used: set[str]
    ) -> tuple[RowsScenario | None, dict[int, str]]:
        """Make the scenario of the valid rows, and the reasons of the others by line."""
        left_out: dict[int, str] = {}
        while rows:
            try:
                raw, chosen = self._raw(rows)
                checked(copy.deepcopy(raw), self.path.parent)
                return self._written(rows, raw, chosen, used), left_out
            except (ScenarioError, _RowError) as error:
                whole = error.problems[0] if isinstance(error, ScenarioError) else str(error)
            bad = {row.line: why for row in rows if (why := self._problem(row)) is not None}
            if not bad:  # each is valid, but not with the others
                bad = {row.line: whole for row in rows}
            left_out |= bad
            rows = [row for row in rows if row.line not in bad]
        return None, left_out

    def _problem(self, row: MeasuredRow) -> str | None:
        """Explain why a row's own scenario is invalid; None if it is not."""
        try:
            raw, _ = self._raw([row], is_alone=True)
            checked({**raw, "measured": None}, self.path.parent)
        except ScenarioError as error:
            return error.problems[0]
        except _RowError as error:
            return str(error)
        return None

    def _raw(self, rows: Sequence[MeasuredRow], is_alone: bool = False) -> tuple[Raw, str]:
        """Make a group's scenario, or a row's alone, as plain data, and describe its compute."""
        setup, largest = _setup_of(rows), max(rows, key=lambda row: row.gpus)
        strategy = next((row.strategy for row in rows if row.strategy is not None), "single")
        precision, is_tf32 = precision_value(setup.precision, kind_of(strategy))
        model = setup.model
        usual, tokens = self._usual_optimizer(model)
        if not tokens and any(row.kind == "tokens" for row in rows):
            raise _RowError("tokens/s: a sample of this model has no tokens; give samples/s.")
        optimizer = setup.optimizer or usual
        workload: Raw = {"model": model, "optimizer": optimizer, "precision": precision}
        workload |= {"recompute": setup.recompute} if setup.recompute != "none" else {}
        is_whole = strategy_class(kind_of(strategy)).in_one_process
        workload |= _batch_keys(largest, is_whole, any(row.grad_accum > 1 for row in rows))
        steps = _of_one_gpu(rows, tokens) if self.compute != "roofline" and not is_whole else {}
        if steps:
            points = [{"microbatch": n, "step_time": _ms(t)} for n, t in sorted(steps.items())]
            workload |= {"compute": {"kind": "measured", "points": points}}
        elif self.compute == "measured" and not is_alone:
            raise _RowError(
                "--compute measured: needs a row of one GPU with the same model, machine, "
                "precision and keys, without grad_accum; add it, or leave the option out."
            )
        elif is_tf32:
            workload |= {"compute": {"kind": "roofline", "float32_matmul_precision": "high"}}
        raw: Raw = {
            "cluster": {**setup.cluster, "world_size": largest.gpus},
            "workload": workload,
            "strategy": strategy,
            "numerics": False,
        }
        for key, value in setup.keys.items():
            set_key(raw, key, value)
        raw |= {"measured": self._measured(rows, steps, tokens, strategy, is_whole)}
        return raw, "rows of one GPU" if steps else DATA_SHEET

    def _usual_optimizer(self, value: object) -> tuple[Any, int]:
        """The usual optimizer of a model as in YAML, and the tokens of a sample."""
        try:
            model = read_model(value, self.path.parent)
        except (ValidationError, ScenarioError):
            return "adamw", 0  # `checked` explains it
        if model.timed:
            return "adamw", 0
        first = model.graph.inputs[0]
        shape = model.input_shapes()[first]
        tokens = int(shape[0]) if shape and model.num_tokens(first) is not None else 0
        return usual_optimizer(model), tokens

    def _measured(
        self,
        rows: Sequence[MeasuredRow],
        steps: Mapping[int, float],
        tokens: int,
        strategy: object,
        is_whole: bool,
    ) -> Raw:
        """The key ``measured`` of a group; rows of equal size become their mean."""
        sizes = grouped((row.size, row) for row in rows)
        varies = [len({row.size[n] for row in rows}) > 1 for n in range(3)]
        noise, points = max(row.noise for row in rows), list[Raw]()
        for (gpus, microbatch, accum), equal in sorted(sizes.items()):
            first, times = equal[0], [row.seconds(tokens) for row in equal]
            mean = fmean(times)
            noise = max(noise, (max(times) - min(times)) / 2 / mean)
            chosen: Raw = {"cluster.world_size": gpus}
            if gpus == 1 and not _is_alone(strategy) and not _is_offloaded(strategy):
                chosen |= {"strategy": "single"}
            if is_whole:
                chosen |= {"workload.global_batch": first.samples}
            elif varies[1]:
                chosen |= {"workload.microbatch": microbatch}
            chosen |= {"workload.grad_accum": accum} if varies[2] else {}
            is_used = gpus == 1 and accum == 1 and microbatch in steps
            given = {row.role for row in equal if row.role}
            role = "calibration" if is_used or "calibration" in given else "predicted"
            figure = {"step_time": _ms(mean)}
            if len(equal) == 1 and first.kind in ("samples", "tokens"):
                figure = {"throughput": f"{first.samples / mean:.6g} samples/s"}
            notes = "; ".join(row.note for row in equal if row.note)
            point: Raw = {"set": chosen, **figure, "role": role}
            points.append(point | ({"note": notes} if notes else {}))
        sources = list(dict.fromkeys(row.source for row in rows if row.source))
        return {
            "source": self.source or "; ".join(sources) or self.path.name,
            **({"noise": format_percent(float(f"{noise:.2g}"))} if noise else {}),
            "points": points,
        }

    def _written(
        self, rows: Sequence[MeasuredRow], raw: Raw, compute: str, used: set[str]
    ) -> RowsScenario:
        """Write a valid scenario as YAML under a name of its own."""
        setup, strategy = _setup_of(rows), kind_of(raw["strategy"])
        model = setup.model
        title = kind_of(model)
        place = Path(str(raw["cluster"].get("machine") or raw["cluster"].get("device"))).stem
        dtype = _plain(setup.precision) or "full"
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{place}_{title}_{strategy}_{dtype}").strip("-.")
        name, number = stem, 1
        while name in used:
            number += 1
            name = f"{stem}_{number}"
        used.add(name)
        gpus = sorted({row.gpus for row in rows})
        size = f"{gpus[0]} to {gpus[-1]} GPUs" if len(gpus) > 1 else f"{gpus[0]} GPU"
        size += "s" if len(gpus) == 1 and gpus[0] > 1 else ""
        source = "of the rows of one GPU" if compute != DATA_SHEET else "by the device's data sheet"
        lines = [row.line for row in rows]
        where = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
        head = [
            f"# How long are steps of {title} on {place} with {strategy}, on {size}?",
            f"# From {self.path.name}, {where}; compute is {source}.",
            *([f"# Assumed: {setup.assumed}."] if setup.assumed else []),
        ]
        raw = move_paths(raw, self.path.parent.resolve(), self.folder.resolve())
        text = "\n".join([*head, format_yaml(raw)])
        return RowsScenario(
            file=f"{name}.yaml",
            text=text,
            model=title,
            machine=place,
            strategy=strategy,
            precision=dtype,
            gpus=tuple(gpus),
            compute=compute,
            lines=tuple(lines),
            num_points=len(raw["measured"]["points"]),
            assumed=setup.assumed,
        )


def _setup_of(rows: Sequence[MeasuredRow]) -> RowSetup:
    """Setup of a scenario: of its first row of several GPUs, if it has one."""
    return next((row.setup for row in rows if row.gpus > 1), rows[0].setup)


def _batch_keys(largest: MeasuredRow, is_whole: bool, accumulates: bool) -> Raw:
    keys: Raw = {"microbatch": largest.microbatch}
    if is_whole:  # one batch for all devices
        keys = {"global_batch": largest.samples}
    return {**keys, **({"grad_accum": largest.grad_accum} if accumulates else {})}


def _of_one_gpu(rows: Sequence[MeasuredRow], tokens: int) -> dict[int, float]:
    """Mean step times [s] of one GPU, by microbatch, without accumulation."""
    times_of: dict[int, list[float]] = {}
    for row in rows:
        if row.gpus == 1 and row.grad_accum == 1 and row.role != "predicted":
            times_of.setdefault(row.microbatch, []).append(row.seconds(tokens))
    return {size: fmean(times) for size, times in times_of.items()}


def _is_offloaded(strategy: object) -> bool:
    """Whether a strategy offloads, which one GPU does as well."""
    return isinstance(strategy, dict) and any(key.startswith("offload") for key in strategy)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.6g} ms"
