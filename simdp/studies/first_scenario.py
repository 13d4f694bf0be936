"""Writes a first scenario for a model and a cluster, with a comment on every key."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

from simdp.cluster.hardware import catalogue_device, hardware, is_file, read_machine
from simdp.engine.simulate import memory_needed
from simdp.errors import ScenarioError
from simdp.files import format_yaml
from simdp.reports.figures import host_need, nbytes
from simdp.results.plan import Fitting, FittingRow
from simdp.scenario.overrides import Raw, move_paths
from simdp.scenario.root import Scenario
from simdp.strategies.memory import beside_tensors
from simdp.studies.fits import fitting
from simdp.studies.methods import (
    FitsRequest,
    Method,
    TrainingNodes,
    checked_here,
    known_value,
    place_of,
    raw_of,
    with_data,
)

SHORT = 512  # tokens of samples that are tried where none fit


def first_scenario(request: FitsRequest, file: Path) -> str:
    """Write a scenario that passes ``check``, fits, and reproduces a row of ``fits``.

    Parameters
    ----------
    request : FitsRequest
        Missing options are those of the row that `fitting` chooses, among methods that train all
        weights unless one is named.
    file : Path
        Later place of the file, which is not written here.

    Returns
    -------
    str
        YAML with a comment on every key.

    Raises
    ------
    ScenarioError
        If an option is wrong, options do not go together, or nothing fits.
    """
    assert request.gpus is not None
    place = place_of(request.machine, request.device, request.node_size)
    known_value("--model", request.model)
    row, fitting_table = _best(request)
    method = Method(
        row.method,
        row.settings["strategy"],
        row.settings["workload.precision"],
        row.recompute,
        row.settings.get("workload.lora"),
        row.settings.get("workload.quantized"),
    )
    _, raw = with_data(raw_of(request, place, request.gpus, method), row.microbatch)
    sizes = _sizes(raw, place)
    if len(sizes) > 1:
        raw["sweep"] = {"cluster.world_size": sizes}
    checked_here(raw)
    raw = move_paths(raw, Path(), file.parent)
    return _in_words(request, place, raw, row, fitting_table, file)


def _best(request: FitsRequest) -> tuple[FittingRow, Fitting]:
    """The row to write; full training on the GPUs comes before offloading."""
    tried: list[Fitting] = []
    refused: ScenarioError | None = None
    is_one = request.strategy is not None and request.recompute is not None
    for name in (request.method,) if request.method else ("full", "offload"):
        try:
            table = fitting(request._replace(method=name), has_times=not is_one)
        except ScenarioError as error:
            refused = refused or error
            continue
        row = table.rows[0] if is_one and table.rows[0].state != "no" else table.chosen
        if row is not None:
            return row, table
        tried.append(table)
    if not tried:
        assert refused is not None
        raise refused
    raise ScenarioError(_nothing_fits(request, tried))


def _fits_when_short(request: FitsRequest) -> bool:
    short = request._replace(method=request.method or "full", sequence_length=SHORT)
    try:
        return any(row.state != "no" for row in fitting(short, has_times=False).rows)
    except ScenarioError:  # a model without a length
        return False


def _nothing_fits(request: FitsRequest, tried: list[Fitting]) -> str:
    """Describe the smallest memory of all rows, and remedies."""
    rows = [row for table in tried for row in table.rows]
    there = tried[0].host_memory_bytes or inf
    short = [row for row in rows if (row.host_memory_bytes or 0.0) > there]
    rows = [row for row in rows if row not in short] or rows
    needed = short[0].host_memory_bytes if short else None
    host = "" if needed is None else f"; offloaded it {host_need(needed, there)}"
    least = min(rows, key=lambda row: row.peak_memory_bytes)
    taken, room = nbytes(least.memory_low_bytes), nbytes(tried[0].memory_bytes)
    given = {"--strategy": request.strategy, "--recompute": request.recompute}
    given |= {"--method": request.method, "--microbatch": request.microbatch}
    options = [option for option, value in given.items() if value is not None]
    do = f"leave out {' and '.join(options)}, or " if options else ""
    if (request.sequence_length or inf) > SHORT and _fits_when_short(request):
        do = f"it fits with --sequence-length {SHORT}; shorten its samples, or "
    device = catalogue_device(request.device)
    where = f"--machine {request.machine}" if request.machine else f"--device {device}"
    return (
        f"--gpus {request.gpus}: {request.title} does not fit: it takes {taken} of {room} per "
        f"GPU at least, with {least.strategy} and recompute: {least.recompute}{host}; {do}find "
        f"how many it needs by `python -m simdp fits {request.title} --gpus '?' {where}`."
    )


def _sizes(raw: Raw, place: TrainingNodes) -> list[int]:
    """Numbers of ranks up to the largest, by doubling: part of a node, then whole nodes.

    Sizes that are invalid, such as a torus of two, or too small for the model are skipped.
    """
    cluster, per_node = raw["cluster"], place.per_node
    largest = int(cluster["world_size"])
    sizes, size = set(), 1
    while size < largest:
        sizes.add(size)
        size = min(2 * size, per_node) if size < per_node else 2 * size
    counts = [largest]
    for size in sorted(sizes, reverse=True):
        try:
            scenario = checked_here({**raw, "cluster": {**cluster, "world_size": size}})
        except ScenarioError:
            continue
        if not _may_fit(scenario):
            break  # fewer ranks need no less
        counts.append(size)
    return counts[::-1]


def _may_fit(scenario: Scenario) -> bool:
    """Whether the tensors and the least overhead of the fullest device fit."""
    peak = float(max(memory_needed(scenario).peak.tolist()))
    room = min(device.memory for device in scenario.cluster.devices())
    return peak + beside_tensors(peak, scenario.cluster.world_size)[0] <= float(room)


def _in_words(
    request: FitsRequest,
    place: TrainingNodes,
    raw: Raw,
    row: FittingRow,
    table: Fitting,
    file: Path,
) -> str:
    sizes = raw.get("sweep", {}).get("cluster.world_size")
    room = "" if row.state == "yes" else ": this may run out of memory"
    chosen = "the simplest of the fastest, by `fits`" if request.strategy is None else "as given"
    lines = [
        *_head(request, place, sizes, file, raw["name"]),
        "",
        *_cluster(place, raw["cluster"]),
        "",
        *_workload(raw["workload"], fitted="" if request.microbatch else ", as many as fit"),
        "",
        f"# {chosen}; ddp, fsdp, hsdp, zero1, local_sgd, ...: `list strategies`",
        *_line("strategy", raw["strategy"]),
        "",
        f"# of {nbytes(table.memory_bytes)} per GPU it takes {nbytes(row.memory_low_bytes)} to "
        f"{nbytes(row.memory_high_bytes)} on {request.gpus}, with CUDA, NCCL and fragments{room}.",
        *_host_lines(row, table),
        "# Times and memory only; true trains every replica in NumPy as well, for small models",
        *_line("numerics", False),
    ]
    if sizes:
        lines += [
            "",
            "# a point for each value: this makes the scaling plot; any key can be swept",
            "sweep:",
            *_line("cluster.world_size", sizes, 2),
        ]
    return "\n".join(lines) + "\n"


def _workload(workload: Raw, fitted: str) -> Iterator[str]:
    """The workload, with a comment above each key."""
    is_whole = "global_batch" in workload
    unit = "samples of all GPUs" if is_whole else "samples per GPU and micro-step"
    comments = {
        "model": "a name of `list models`, perhaps with keys: {kind: bert-base, sequence_length: "
        "512}",
        "dataset": "drawn, since times depend on shapes alone; {kind: npz, path: x.npz} reads a "
        "file",
        "lora": "adapters beside these layers are trained, as PEFT adds them; all else is frozen",
        "quantized": "weights of these layers have 4 bits, as bitsandbytes stores them",
        "attention": "scaled_dot_product_attention, as in transformers 5; eager: kernel by kernel",
        "optimizer": "named and argued as torch's: {kind: sgd, lr: 0.1, momentum: 0.9}",
        "global_batch" if is_whole else "microbatch": f"{unit}{fitted}; grad_accum: 4 would take "
        "four per update",
        "precision": "full, amp (torch.autocast) or mixed (16-bit weights with a 32-bit master)",
        "recompute": "none, selective or blocks: what backward computes again, to keep less",
        "steps": "the first is warm-up",
    }
    yield "workload:"
    for key, comment in comments.items():
        if key in workload:
            yield f"  # {comment}"
            yield from _line(key, workload[key], 2)


def _host_lines(row: FittingRow, table: Fitting) -> Iterator[str]:
    if row.host_memory_bytes is not None:
        need = host_need(row.host_memory_bytes, table.host_memory_bytes)
        unknown = "; its size is not known" * (table.host_memory_bytes is None)
        yield f"# Each node {need}{unknown}."


def _head(
    request: FitsRequest, place: TrainingNodes, sizes: list[int] | None, file: Path, name: str
) -> Iterator[str]:
    """Comments on the study and its commands."""
    pictures = "scaling.png, timeline.png" if sizes else "timeline.png"
    if sizes:
        on = f"scale on {place.title}, from {sizes[0]} to {request.gpus} GPUs"
        yield f"# How does {request.title} {on}?"
    else:
        yield f"# How fast does {request.title} train on {place.title}, on {request.gpus} GPUs?"
    yield f"# Simulate it with `python -m simdp run {file}`: a table on the screen, and"
    yield f"# {pictures}, trace.json and result.json in runs/{name}/."
    yield "# Try another value with --set strategy=fsdp, and several side by side:"
    yield f"# `python -m simdp compare {file} --set sweep=null --over strategy=ddp,fsdp`."
    yield from _line("name", name)


def _cluster(place: TrainingNodes, cluster: Raw) -> Iterator[str]:
    """The cluster, and in comments its keys without a machine's name."""
    yield "cluster:"
    machine = place.machine
    comments = {
        "devices_per_node": "of a node, in place of the machine's",
        "host_memory": "of a node, for offloaded state",
        "world_size": f"GPUs in use: part of a node of {place.per_node}, or whole nodes",
    }
    if machine is None:
        yield f"  # assumed: {place.assumed}"
        for key, value in place.cluster.items():
            yield from _line(key, value, 2)
        del comments["devices_per_node"]
    else:
        yield f"  # {machine if is_file(machine) else hardware(machine)}"
        for caveat in read_machine(machine, Path()).caveats:
            yield f"  # Caution: {caveat}"
        yield "  # `python -m simdp list machines` prints all; `calibrate` makes one of your logs"
        yield from _line("machine", cluster["machine"], 2)
    for key, comment in comments.items():
        if key in cluster:
            yield f"  # {comment}"
            yield from _line(key, cluster[key], 2)
    if machine is not None:
        yield "  # Not yours? Write your own nodes in its place (list devices, links, topologies):"
        for key in ("devices_per_node", "device", "topology", "link", "inter_node"):
            if key in place.figures:
                for line in _line(key, place.figures[key]):
                    yield f"  # {line}"


def _line(key: str, value: object, indent: int = 0) -> Iterator[str]:
    if isinstance(value, dict | list):
        text = format_yaml({key: value})
    else:
        text = f"{key}: {format_yaml([value]).strip()[1:-1]}"
    for line in text.splitlines():
        yield " " * indent + line
