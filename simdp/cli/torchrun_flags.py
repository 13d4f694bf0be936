"""Flags of torchrun: what they mean where all ranks are in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from simdp.distributed.clusters import Where


class Size(NamedTuple):
    """Where a script runs.

    Attributes
    ----------
    where : Where
        With a cluster of as many ranks as are asked for.
    device_count : int
        Devices of each node.
    """

    where: Where
    device_count: int


def refuse(
    no_python: bool,
    node_rank: int,
    rdzv_backend: str,
    max_restarts: int,
    standalone: bool,
    nnodes: str,
) -> None:
    """Refuse what cannot be had here.

    Raises
    ------
    ScenarioError
        With every problem.
    """
    from simdp.errors import ScenarioError, unknown_name

    problems = []
    if no_python:
        problems.append("--no-python: other programs cannot run on virtual ranks; give a script.")
    if node_rank:
        problems.append(f"--node-rank {node_rank}: this command runs all nodes; leave it out.")
    if rdzv_backend not in ("static", "c10d"):
        problems.append(f"--rdzv-backend: {unknown_name('name', rdzv_backend, ['c10d', 'static'])}")
    if max_restarts < 0:
        problems.append(f"--max-restarts {max_restarts}: must be >= 0.")
    if standalone and nnodes != "1":
        problems.append(f"--nnodes {nnodes}: --standalone is for one node; leave one of them out.")
    if problems:
        raise ScenarioError(problems)


def size(cluster: Path, nnodes: str, nproc_per_node: str) -> Size:
    """Find the cluster, at the size that is asked for.

    Raises
    ------
    ScenarioError
        If the cluster or a number is wrong.
    """
    from simdp.distributed.clusters import find
    from simdp.errors import ScenarioError

    problems, nodes, ranks = [], _number(nnodes.rpartition(":")[2]), _number(nproc_per_node)
    if nodes is None or (":" in nnodes and _number(nnodes.partition(":")[0]) is None):
        problems.append(f"--nnodes {nnodes}: must be a number >= 1, or a range as 1:4.")
    if nproc_per_node in ("auto", "gpu"):
        ranks = int(find(cluster).cluster.local_size)
    elif ranks is None:
        problems.append(
            f"--nproc-per-node {nproc_per_node}: must be a number >= 1, auto or gpu; how many "
            "cores a host has is not known."
        )
    if problems or nodes is None or ranks is None:
        raise ScenarioError(problems)
    found = find(cluster, nodes * ranks, ranks)
    try:
        count = int(find(cluster).cluster.local_size)
    except ScenarioError:  # a scenario whose cluster has no size of its own
        count = ranks
    return Size(found, max(count, ranks))


def _number(text: str) -> int | None:
    """A number of at least 1; None for what is none."""
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


@contextmanager
def recording(record: Path | None, where: Where, cluster: Path) -> Iterator[None]:
    """Watch what a script trains, and write it as a scenario when the script is over.

    Raises
    ------
    ScenarioError
        If the file's name is none of a scenario.
    SimdpError
        If the script trains nothing, or what it trains cannot be recorded.
    """
    if record is None:
        yield
        return
    from simdp.errors import ScenarioError
    from simdp.torch.parts import PARTS
    from simdp.torch.recording.recorder import Recorder

    if record.suffix not in (".yaml", ".yml"):
        problem = f"--record {record}: a scenario's name ends in .yaml; write {record}.yaml."
        raise ScenarioError([problem])
    recorder = Recorder(record)
    PARTS.append(recorder)
    try:
        yield
    finally:
        PARTS.remove(recorder)
    recorder.write(where, cluster)


@contextmanager
def computing(path: Path | None) -> Iterator[None]:
    """Let the layers of a script take what a record says.

    Raises
    ------
    ScenarioError
        If the record cannot be read, or the script has none of its layers.
    """
    if path is None:
        yield
        return
    from simdp.torch.charging.record_files import read_record
    from simdp.torch.charging.turns import Recorded
    from simdp.torch.parts import PARTS

    recorded = Recorded(read_record(path))
    PARTS.append(recorded)
    try:
        yield
    finally:
        PARTS.remove(recorded)
    recorded.check()


def environment(
    master_addr: str, master_port: int, rdzv_endpoint: str, rdzv_id: str, role: str
) -> dict[str, str]:
    """What ranks find in their environment, beside what says who they are.

    Raises
    ------
    ScenarioError
        If the endpoint is none.
    """
    from simdp.errors import ScenarioError

    host, port = master_addr, str(master_port)
    if rdzv_endpoint:
        host, _, port = rdzv_endpoint.partition(":")
        port = port or "29400"
        if not host or not port.isdigit():
            problem = f"--rdzv-endpoint {rdzv_endpoint}: must be HOST:PORT, as localhost:29400."
            raise ScenarioError([problem])
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": rdzv_id,
        "ROLE_NAME": role,
    }


def marks(tee: str, shown: str, role: str, where: Where) -> list[dict[str, str | None]]:
    """What each rank's lines begin with, on each stream; None where they are not shown.

    Raises
    ------
    ScenarioError
        If a flag is wrong.
    """
    from simdp.errors import ScenarioError

    local, n = where.cluster.local_size, where.cluster.world_size
    if tee not in ("0", "1", "2", "3"):
        problem = f"--tee {tee}: must be 0, 1 (stdout), 2 (stderr) or 3 (both), for all ranks."
        raise ScenarioError([problem])
    chosen = [int(text) if text.isdigit() else local for text in shown.split(",") if text]
    if any(rank >= local for rank in chosen):
        problem = f"--local-ranks-filter {shown}: must be some of 0 ... {local - 1}, as 0,1."
        raise ScenarioError([problem])
    found: list[dict[str, str | None]] = []
    for rank in range(n):
        mark = f"[{role}{rank % local}]:"
        hidden = bool(chosen) and rank % local not in chosen
        found.append(
            {
                "stdout": None if hidden else mark * (int(tee) & 1),
                "stderr": None if hidden else mark * (int(tee) >> 1),
            }
        )
    return found
