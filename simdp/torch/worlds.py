"""Worlds: the process groups that each rank has, in place of those of the process.

Torch keeps its groups in variables of a module and of one object, and in a registry that C++ looks
names up in, which it can keep for each thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import _set_thread_isolation_mode

from simdp.distributed.backends import BACKENDS
from simdp.engine.programs.calls import NOTHING, Asked
from simdp.errors import ProgramError
from simdp.torch.parts import Part
from simdp.torch.process_groups import Virtual
from simdp.torch.ranks import Rank, asking

NAMES = (
    "_pg_map",
    "_pg_names",
    "_pg_group_ranks",
    "_pg_backend_config",
    "_group_count",
    "_tags_to_pg",
    "_pg_to_tag",
    "_default_pg_init_method",
)
"""Variables of torch's module."""


class Worlds(Part):
    """Each rank's groups."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        plugins = c10d.Backend._plugins
        before, world, variables = dict(plugins), dict(vars(c10d._world)), _variables()
        helper = c10d._new_process_group_helper
        recorder = getattr(c10d, "_maybe_attach_flight_recorder", None)  # since torch 2.14
        for name in BACKENDS:
            plugins[name.upper()] = c10d.Backend._BackendPlugin(_made, True)

        def told(*given: Any, **named: Any) -> Any:
            config = c10d.BackendConfig(named.get("backend") or given[3])
            asking("init_process_group").state["backends"] = config.get_device_backend_map()
            return helper(*given, **named)

        c10d._new_process_group_helper = told
        if recorder is not None:
            c10d._maybe_attach_flight_recorder = lambda *given: None
        _set_thread_isolation_mode(True)
        try:
            yield
        finally:
            _set_thread_isolation_mode(False)
            if recorder is not None:
                c10d._maybe_attach_flight_recorder = recorder
            c10d._new_process_group_helper = helper
            plugins.clear()
            plugins.update(before)
            _put(world, variables)

    def begin(self, rank: Rank) -> None:
        fresh = {name: type(value)() for name, value in _variables().items() if value is not None}
        world = vars(type(c10d._world)()).copy()
        rank.state["world"] = world, {**dict.fromkeys(NAMES), **fresh}
        self.enter(rank)

    def enter(self, rank: Rank) -> None:
        if "world" in rank.state:
            _put(*rank.state["world"])

    def leave(self, rank: Rank) -> None:
        rank.state["world"] = dict(vars(c10d._world)), _variables()

    def end(self, rank: Rank) -> None:
        rank.state.pop("world", None)


def _variables() -> dict[str, Any]:
    return {name: getattr(c10d, name) for name in NAMES}


def _put(world: dict[str, Any], variables: dict[str, Any]) -> None:
    vars(c10d._world).clear()
    vars(c10d._world).update(world)
    for name, value in variables.items():
        setattr(c10d, name, value)


def _made(options: Any, backend_options: Any = None) -> Virtual:
    """Make a group of a rank, as torch asks for it."""
    rank = asking("init_process_group")
    runtime = rank.runtime
    world_size, size, place = runtime.cluster.world_size, options.group_size, options.group_rank
    first = not options.global_ranks_in_group
    ranks = tuple(options.global_ranks_in_group) or tuple(range(world_size))
    if first and size not in (-1, world_size):
        raise ProgramError(
            f"init_process_group: world_size is {size}, but the script runs on {world_size} ranks; "
            f"start it with --nproc-per-node {size}, or leave world_size out."
        )
    if place != -1 and ranks[place] != rank.rank:
        raise ProgramError(
            f"init_process_group: rank is {place}, but this is rank {rank.rank}; leave rank out, "
            "or give int(os.environ['RANK'])."
        )
    asked = rank.state["backends"]
    served = {kind: name for kind, name in asked.items() if name in BACKENDS}
    label = "default" if first else f"{options.group_id} (ranks {', '.join(map(str, ranks))})"
    groups = {kind: runtime.group(label, ranks, name) for kind, name in served.items()}
    names = sorted(set(served.values()))
    call = Asked("init_process_group" if first else "new_group", more=f"backend={','.join(names)}")
    group = next(iter(groups.values()))
    runtime.wait(group.issue(rank.rank, rank.settle(), call, NOTHING, None, blocked=True))
    return Virtual(rank, groups, ",".join(names))
