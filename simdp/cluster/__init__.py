"""Clusters: devices in nodes, directed links between them, stragglers and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from simdp.arrays import Bools, Floats, Ints
from simdp.cluster.allocators import AnyAllocator, Exact
from simdp.cluster.failures import AnyFailures
from simdp.cluster.hardware import (
    LARGE_BUFFER,
    LEVELS,
    AnyDevice,
    AnyLink,
    AnyMachine,
    Contention,
    Device,
    HostMemory,
    Link,
    Overheads,
    Power,
    one_or_list,
    rates_of,
    read_machine,
)
from simdp.cluster.numbering import InterNode, Numbering, link_name
from simdp.cluster.stragglers import AnyStraggler, LinkFactors, factors
from simdp.cluster.topologies import AnyTopology
from simdp.cluster.topologies.base import Topology
from simdp.cluster.topologies.direct import SwitchTopology
from simdp.errors import ScenarioError
from simdp.results.metrics import Rates
from simdp.spec import Int, PositiveBytes, Price, Spec, problem

__all__ = ["MAX_WORLD_SIZE", "Cluster", "Device", "InterNode", "Link", "Overheads"]


MAX_WORLD_SIZE = 2**20


class Cluster(Spec):
    """Devices, their links, their stragglers and their failures.

    Notes
    -----
    Links are numbered node by node, then those between nodes. Vertices beyond the ranks are
    switches that can add (see `inside_parents` and `across_parents`): with k of them in each node,
    reducer i of a node is vertex ``world_size + node * k + i``; reducer i of the network between
    nodes is ``world_size + num_nodes * k + i``.
    """

    # For editors: a machine may bring all other keys.
    model_config = ConfigDict(
        json_schema_extra={
            "required": [],
            "anyOf": [
                {"required": ["machine"], "properties": {"machine": {"type": "string"}}},
                {"required": ["world_size", "device"]},
            ],
        }
    )

    machine: AnyMachine | None = None
    """A machine of the catalogue, or a file written by ``calibrate``. It sets keys of ``cluster``
    and ``collectives`` that the scenario does not."""
    world_size: Int = Field(ge=1, le=MAX_WORLD_SIZE)
    """Number of ranks."""
    devices_per_node: Int | None = Field(None, ge=1, le=MAX_WORLD_SIZE)
    """None: one node holds all of them."""
    ranks_per_device: Int = Field(1, ge=1, le=2**10)
    """Consecutive ranks on one device; the last may hold fewer. They share its time in slices: with
    k ranks on it, arithmetic and memory traffic of each take k times as long, also while others
    wait, and hosts launch kernels in parallel. Each rank has separate arrays in the device's
    memory. Links and network cards are those of ranks: two on one device communicate as two devices
    do."""
    device: AnyDevice | list[AnyDevice]
    """One for all ranks, or one per rank."""
    allocator: AnyAllocator = Exact()
    """Determines the memory used by a tensor."""
    topology: AnyTopology | list[AnyTopology] = SwitchTopology()
    """Inside a node; or lists with one per node."""
    link: AnyLink | list[AnyLink] | None = None
    """Inside a node; or lists with one per node."""
    inter_node: InterNode | None = None
    """Required for more than one node."""
    stragglers: list[AnyStraggler] = Field(default_factory=list)
    """Slow ranks, nodes and links; their factors multiply."""
    failures: list[AnyFailures] = Field(default_factory=list)
    """Processes that remove nodes over the weeks of a job, and return them."""
    overheads: Overheads = Overheads()
    """Software overheads of distributed training; none by default."""
    host: HostMemory = HostMemory()
    """Speeds of the host memory and the links to it, for offloaded state."""
    host_memory: PositiveBytes | None = None
    """Host memory of a node [bytes]; None: unknown."""
    price: Price | None = None
    """Of a device [USD/s], written for example as ``2.5 USD/h``; default: the catalogue's list
    price, if any, which is printed with its date."""
    power: Power | None = None
    """Power of devices and nodes; missing values come from the catalogue."""

    @field_validator("device", mode="wrap")
    @classmethod
    def _one_device_or_a_list(cls, value: object, handler: object, info: ValidationInfo) -> Any:
        return one_or_list(AnyDevice, value, info)

    @field_validator("topology", mode="wrap")
    @classmethod
    def _one_topology_or_a_list(cls, value: object, handler: object, info: ValidationInfo) -> Any:
        return one_or_list(AnyTopology, value, info)

    @field_validator("link", mode="wrap")
    @classmethod
    def _one_link_or_a_list(cls, value: object, handler: object, info: ValidationInfo) -> Any:
        return one_or_list(AnyLink, value, info, optional=True)

    _bond: int = PrivateAttr(default=1)

    @model_validator(mode="after")
    def _sizes_fit(self, info: ValidationInfo) -> Cluster:
        n, per_node, k = self.world_size, self.ranks_per_node, self.ranks_per_device
        if per_node is not None and n > per_node:
            if n % per_node:
                of_ranks = f" of {k} ranks each" if k > 1 else ""
                known = "devices_per_node" + (" x ranks_per_device" if k > 1 else "")
                raise problem(
                    f"world_size {n} is neither one partly used node of {self.devices_per_node} "
                    f"devices{of_ranks} nor a multiple of {known}; use "
                    f"{n // per_node * per_node} or {(n // per_node + 1) * per_node}."
                )
            if self.inter_node is None:
                raise problem(
                    f"world_size {n} needs {n // per_node} nodes, but there is no inter_node "
                    "network; add inter_node: {topology: switch, link: ib-hdr}."
                )
        if self.link is None and self.local_size > 1:
            raise problem(
                "link is required where a node has two devices or more; add link: nvlink3."
            )
        if isinstance(self.device, list) and len(self.device) != n:
            raise problem(
                f"device lists {len(self.device)} devices for world_size {n}; give one per rank."
            )
        for rank, device in enumerate(self.devices()) if k > 1 else ():
            if device != self.devices()[rank // k * k]:
                raise problem(
                    f"device: ranks {rank // k * k} and {rank} share a device, but the list gives "
                    "them different ones; give both the same."
                )
        for wrong in [
            *self._list_problems(),
            *self._bond_cards((info.context or {}).get("base")),
            *self._power_problems(),
        ]:
            raise problem(wrong)
        for wrong in self._network_problems():
            raise problem(wrong)
        return self

    def _list_problems(self) -> list[str]:
        """Reject lists with a number of entries other than that of nodes or devices."""
        nodes, inter = self.num_nodes, self.inter_node
        problems: list[str] = []
        for key, value in (
            ("topology", self.topology),
            ("link", self.link),
            ("inter_node.link", inter.link if inter else None),
        ):
            if isinstance(value, list) and len(value) != nodes:
                problems.append(
                    f"{key} lists {len(value)} entries for {nodes} nodes; give one each."
                )
        if inter and inter.nics is not None:
            places = self.ranks_per_node or self.world_size
            noun = "devices" if self.ranks_per_device == 1 else "ranks"
            if len(inter.nics) != places:
                problems.append(
                    f"inter_node.nics has {len(inter.nics)} entries for {places} {noun} of a "
                    "node; give one each."
                )
            missing = [nic for nic in inter.nics if not 0 <= nic < inter.links_per_node]
            if missing:
                problems.append(
                    f"inter_node.nics names card {missing[0]}, but links_per_node is "
                    f"{inter.links_per_node}; give 0 ... {inter.links_per_node - 1}."
                )
        return problems

    def _bond_cards(self, base: Path | None) -> list[str]:
        """Bond the cards that a rank has beyond its first; reject numbers that leave some over.

        A machine's cards belong to all devices of its nodes, however many of them a job uses.
        """
        inter, ranks = self.inter_node, self.ranks_per_node or self.world_size
        if inter is None or inter.nics is not None or inter.links_per_node <= ranks:
            return []
        cards = inter.links_per_node
        with suppress(ScenarioError):  # a file, which reading the scenario reports
            whole = read_machine(self.machine, base or Path()).cluster if self.machine else {}
            if cards == whole.get("inter_node", {}).get("links_per_node"):
                ranks = max(ranks, whole.get("devices_per_node", 1) * self.ranks_per_device)
        bond, over = divmod(cards, ranks) if cards >= ranks else (1, 0)
        near = f"{cards - over} or {cards - over + ranks}"
        wrong = f"are no multiple of the {ranks} ranks of a node; use {near}, or write the card of "
        wrong += "each in nics"
        inside = self.topology if isinstance(self.topology, list) else [self.topology]
        try:
            inter.bonded(bond)
            for topology in inside:
                topology.bonded(bond)
        except ValueError as error:
            over, wrong = 1, f"are {bond} for each of {ranks} ranks, but {error}"
        if not over:
            self._bond = bond
        several = over and self.num_nodes > 1
        return [f"inter_node.links_per_node: {cards} cards {wrong}."] if several else []

    def _power_problems(self) -> list[str]:
        """Reject incomplete powers."""
        if self.power is None:
            return []
        for device, _ in self._kinds_of_devices():
            missing = [
                key for key in LEVELS if getattr(self._power_of(device).settled(), key) is None
            ]
            if missing:
                return [
                    f"power: {missing[0]} of {device.name or 'the device'} is given neither here "
                    f"nor in the catalogue; add {missing[0]}, for example {missing[0]}: 80 W."
                ]
        return []

    def _network_problems(self) -> list[str]:
        """Reject topologies that do not fit their endpoints, or leave ranks disconnected."""
        inter = self.inter_node and self.inter_node.bonded(self._bond)
        cards = inter.links_per_node if inter else 0
        inside = self.topology if isinstance(self.topology, list) else [self.topology]
        problems: list[str] = []
        for topology in inside:
            whole = self.ranks_per_node or self.world_size
            per_node = cards if topology.only_inside else 1
            noun = "devices" if self.ranks_per_device == 1 else "ranks"
            problems += _misfits("topology", topology, self.local_size, per_node, whole, noun)
        if inter and inter.topology.only_inside:
            problems.append(
                f"inter_node.topology: {inter.topology.kind} is the inside of a node; "
                "use switch, fat_tree or another network."
            )
        elif inter and self.num_nodes > 1:
            per_node = cards if inter.topology.of_ports else 1
            n, noun = self.num_nodes * per_node, "ports" if inter.topology.of_ports else "nodes"
            problems += _misfits("inter_node.topology", inter.topology, n, per_node, n, noun)
        apart = None if problems else self.numbering.unconnected()
        if apart:
            a, b = apart
            place = "topology" if a // self.local_size == b // self.local_size else "inter_node"
            problems.append(f"{place}: there is no route from rank {a} to rank {b}; join them.")
        return problems

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks of a full node; None if one node holds all of them."""
        return self.devices_per_node and self.devices_per_node * self.ranks_per_device

    @property
    def local_size(self) -> int:
        """Ranks per node."""
        return min(self.world_size, self.ranks_per_node or self.world_size)

    @property
    def num_nodes(self) -> int:
        """Nodes with ranks."""
        return self.world_size // self.local_size

    def listed(self) -> list[str]:
        """Return the keys that are given one by one, of each device or node."""
        inter = self.inter_node
        values = {
            "device": self.device,
            "topology": self.topology,
            "link": self.link,
            "inter_node.link": inter.link if inter else None,
        }
        return [key for key, value in values.items() if isinstance(value, list)]

    def devices(self) -> list[Device]:
        """Return the device of each rank."""
        return self.device if isinstance(self.device, list) else [self.device] * self.world_size

    def slowdown_beside(
        self, collective: str, num_ranks: int, nbytes: float, seconds: Callable[[float], float]
    ) -> float:
        """Return the relative increase of compute time while a collective runs.

        With `Contention` that of the device that it slows down most.

        Parameters
        ----------
        collective : str
            Its name.
        num_ranks : int
            Ranks that take part.
        nbytes : float
            The whole buffer [bytes].
        seconds : callable
            Returns the duration of the collective, alone, with a buffer of some bytes [s].
        """
        rule = self.overheads.compute_slowdown
        if not isinstance(rule, Contention):
            return rule
        from simdp.results.collective import bus_bandwidth_factor  # few runs need it

        factor = bus_bandwidth_factor(collective, num_ranks) or 1.0
        times = [(size, seconds(size)) for size in (nbytes, LARGE_BUFFER)]
        bandwidth, full = (factor * size / time if time else 0.0 for size, time in times)
        return max(rule.slowdown(device, bandwidth, full) for device, _ in self._kinds_of_devices())

    def sharers(self) -> Ints:
        """Return the number of ranks on each rank's device, shape `(world_size,)`."""
        n, k = self.world_size, self.ranks_per_device
        return np.minimum(k, n - np.arange(n) // k * k)

    def rates(self) -> Rates:
        """Return the known price and power of all devices and nodes."""
        kinds = self._kinds_of_devices()
        powers = [(self._power_of(device), count) for device, count in kinds]
        prices = [(self._price_of(device), count) for device, count in kinds]
        return rates_of(powers, prices, self.num_nodes)

    def _kinds_of_devices(self) -> list[tuple[Device, float]]:
        """Return each kind of device once, with its number."""
        shares = 1.0 / self.sharers()
        if not isinstance(self.device, list):
            return [(self.device, float(shares.sum()))]
        kinds: list[tuple[Device, float]] = []
        for device, share in zip(self.device, shares.tolist(), strict=True):
            number = next((i for i, (known, _) in enumerate(kinds) if known == device), None)
            if number is None:
                kinds.append((device, share))
            else:
                kinds[number] = device, kinds[number][1] + share
        return kinds

    def _power_of(self, device: Device) -> Power:
        return (self.power or Power()).over(device.power)

    def _price_of(self, device: Device) -> float | None:
        if self.price is not None:
            return self.price
        return None if device.price is None else device.price.amount

    @cached_property
    def numbering(self) -> Numbering:
        """The numbering of links and vertices, built on first use."""
        nodes, local = self.num_nodes, self.local_size
        return Numbering(nodes, local, self.topology, self.link, self.inter_node, self._bond)

    @cached_property
    def degraded(self) -> LinkFactors | None:
        """Factors of the permanently degraded links, if any."""
        return factors(self.numbering, self.stragglers)

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Copy without the cached numbering, which an update may invalidate."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("numbering", None)
        copied.__dict__.pop("degraded", None)
        return copied

    @property
    def num_links(self) -> int:
        """Directed links of the whole cluster."""
        return self.numbering.num_links

    def routes(self, src: Ints, dst: Ints) -> Ints:
        """Return the directed links of many routes.

        Parameters
        ----------
        src, dst : ndarray, shape `(num_routes,)`, int64
            Ranks; a rank has no route to itself. One or both may be adjacent reducing switches:
            inside one node, or between nodes, where a rank represents the port of its network card.

        Returns
        -------
        ndarray, shape `(num_routes, longest)`, int64
            Link numbers in order of travel; shorter routes end in -1.
        """
        return self.numbering.routes(src, dst)

    def link_figures(self, links: Ints) -> tuple[Floats, Floats]:
        """Return alpha [s] and bandwidth [bytes/s] of links, two arrays shaped as ``links``.

        Entries of -1 get 0 s and 1 B/s. Permanently degraded links have their reduced figures; for
        temporary degradation, see `simdp.engine.network`.
        """
        alpha, bandwidth = self.numbering.figures(links)
        if self.degraded is not None:
            there, mine = links >= 0, np.maximum(links, 0)
            alpha = np.where(there, alpha * self.degraded.alpha[mine], alpha)
            bandwidth = np.where(there, bandwidth * self.degraded.bandwidth[mine], bandwidth)
        return alpha, bandwidth

    def begins_stage(self, links: Ints) -> Bools:
        """Return before which links a route is stored and forwarded, shaped as ``links``.

        The stages of such a route add up: ``1 / bandwidth`` is the sum, over its stages, of one
        over the narrowest link of the stage. False for entries of -1.
        """
        return self.numbering.begins_stage(links)

    def link_name(self, link: int) -> str:
        """Describe a link, for messages: ``"the link from rank 3 to rank 4"``."""
        return link_name(self.numbering, link)

    def inside_parents(self) -> Ints | None:
        """Return the reduction tree inside every node, shape `(local_size + k,)`.

        As `Topology.parents`; None if nodes cannot add or differ.
        """
        return self.numbering.inside_parents

    def across_parents(self) -> Ints | None:
        """Return the reduction tree between nodes, over the ports of network cards (see `ports`).

        As `Topology.parents`, shape `(num_nodes * cards + num_reducers,)`.
        """
        return self.numbering.across_parents

    def ports(self, ranks: Ints) -> Ints:
        """Return the port of each rank's network card: ``node * cards + card``."""
        return self.numbering.ports(ranks)


def _misfits(
    key: str, topology: Topology, n: int, per_node: int, whole: int, noun: str
) -> list[str]:
    """Explain why a topology cannot connect n endpoints, of at most ``whole``."""
    most = topology.capacity()
    if most is not None and whole > most:
        return [
            f"{key}: {topology.kind} joins {most} {noun} at most, not {whole}; "
            "enlarge it, or use switch."
        ]
    wrong = topology.problem_with(n, per_node)
    return [f"{key}: {wrong}"] if wrong else []
