"""Why NCCL is slow, or does not start: its log, the topology of a node, and nccl-tests' bandwidth.

The bandwidth that is due comes from the machines of the catalogue with such devices (NCCL's cost
model), and from the network cards that the log names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from simdp.cluster.hardware import catalogue_device
from simdp.collectives import FAMILIES
from simdp.results.collective import NcclLog, bus_bandwidth_factor, nccl_tables
from simdp.results.diagnosis import Finding
from simdp.studies.diagnose.expected import ReferenceMachines
from simdp.traces.logs import JobLog, NcclDebugLog, NodeTopology

SLOW = 0.75  # part of the bandwidth that is due, below which it counts as slow

OF_A_CARD = (0.75, 1.05)
"""Parts of a card's bandwidth between which a bus bandwidth is that of one card."""

CARDS = (1.25e9, 3.125e9, 6.25e9, 12.5e9, 25e9, 50e9, 100e9)
"""Bandwidths of network cards: 10 to 800 Gb/s [bytes/s]."""

LARGE = 2**24  # bytes from which a collective shows the bandwidth of links

PEERMEM = (
    "modprobe nvidia-peermem (or a driver and kernel with DMA-BUF), and check that ACS is off: "
    "then channels end in /GDRDMA"
)


class Network(NamedTuple):
    """What the texts have on the network of a job."""

    log: NcclDebugLog
    topology: NodeTopology | None
    bench: NcclLog | None  # of nccl-tests
    # usual, least: bus bandwidth of a machine with such devices, and of the slowest [bytes/s]
    usual: float | None
    least: float | None
    machine: str | None  # the usual one

    @property
    def busbw(self) -> float | None:
        """Bus bandwidth of the largest size [bytes/s]; None for small ones."""
        if self.bench is None or not self.bench.world_size:
            return None
        row = self.bench.rows[-1]
        factor = bus_bandwidth_factor(self.bench.collective or "all_reduce", self.bench.world_size)
        large = row.nbytes >= LARGE
        return row.nbytes / row.seconds * factor if factor and large else None

    @property
    def num_cards(self) -> int | None:
        """Network cards per node that NCCL found."""
        counts = [len(cards) for cards in self.log.cards.values()]
        return min(counts) if counts else None

    @property
    def card_speed(self) -> float | None:
        """Bandwidth of a card, as NCCL detected it [bytes/s]."""
        return min(self.log.speeds.values()) if self.log.speeds else None

    @property
    def is_spread(self) -> bool:
        """Whether ranks are on several nodes."""
        return (self.log.nodes() or 1) > 1

    @property
    def local_size(self) -> int | None:
        """Ranks per node."""
        world, nodes = self.log.world_size(), self.log.nodes()
        return world // nodes if world and nodes else None


def network_findings(logs: Sequence[JobLog], machine: str | None) -> Iterator[Finding]:
    """Find what slows NCCL down, or keeps it from starting."""
    topology = next((log.topology for log in logs if log.topology), None)
    for log in logs:
        if log.nccl is None:
            continue
        network = _network(log, topology, machine)
        for check in CHECKS:
            yield from check(network)
        yield from _warnings(network)
    if topology is not None and not any(log.nccl for log in logs):
        yield from _access_control(topology)
        yield from _cross_socket(topology)


def _network(log: JobLog, topology: NodeTopology | None, machine: str | None) -> Network:
    nccl = log.nccl
    assert nccl is not None
    tables = nccl_tables(log.text, log.name)
    bench = tables[0] if tables else None
    if bench is None or (bench.world_size or 0) < 2:
        return Network(nccl, topology, bench, None, None, None)
    return Network(nccl, topology, bench, *_expected(bench, nccl, machine))


def _expected(
    bench: NcclLog, log: NcclDebugLog, machine: str | None
) -> tuple[float | None, float | None, str | None]:
    """Bus bandwidths of the largest size on machines with such devices."""
    world, nodes = bench.world_size or 0, bench.num_nodes or log.nodes() or 1
    reference = ReferenceMachines(machine, log.device(), world)
    row, name = bench.rows[-1], bench.collective or "all_reduce"
    factor = bus_bandwidth_factor(name, world)
    if not factor or world % nodes or name not in FAMILIES:
        return None, None, None
    time = reference.across(name, float(row.nbytes), nodes, world // nodes)
    if time is None:
        return None, None, None
    usual, longest = (row.nbytes / t * factor for t in (time.usual, time.longest))
    return usual, usual if machine else longest, reference.name


def _gbs(value: float) -> str:
    return f"{value / 1e9:.3g} GB/s"


def _gbits(value: float) -> str:
    return f"{8 * value / 1e9:.0f} Gb/s"


def _due(net: Network) -> str:
    """What machines with such devices give, in words."""
    if net.usual is None or net.least is None or (net.busbw or 0.0) >= net.usual:
        return ""
    slowest = f", and {_gbs(net.least)} on the slowest with such devices"
    differs = net.least < SLOW * net.usual
    return f"{_gbs(net.usual)} of bus bandwidth on {net.machine}" + slowest * differs


def _got(net: Network) -> str:
    return "" if net.busbw is None else f"{_gbs(net.busbw)} of bus bandwidth"


# Checks -------------------------------------------------------------------------------------------


def _sockets(net: Network) -> Iterator[Finding]:
    log = net.log
    used = "NET/Socket" in log.transports
    chosen = log.networks == ["Socket"] or (not log.networks and log.no_card and log.interfaces)
    nodes = log.nodes()
    if not used and (not chosen or nodes == 1):
        return
    at = f" over {log.interfaces[0].split(':')[0]}" if log.interfaces else ""
    disabled = log.settings.get("NCCL_IB_DISABLE") not in (None, "0")
    libraries = any("libibverbs" in warning.text for warning in log.warnings)
    unable = next((w.text for w in log.warnings if "nable to open device" in w.text), None)
    why = "NCCL found no RDMA device"
    remedy = "in a container, --device=/dev/infiniband --cap-add=IPC_LOCK --network=host (or the "
    remedy += (
        "RDMA device plugin), with ibv_devices listing the cards; on AWS the aws-ofi-nccl plugin"
    )
    if disabled:
        why, remedy = "NCCL_IB_DISABLE turns RDMA off", "unset NCCL_IB_DISABLE"
    elif unable:
        why = f"NCCL cannot open the RDMA device ({unable})"
    elif libraries:
        why, remedy = "libibverbs is missing", f"install rdma-core (libibverbs1); {remedy}"
    elif not log.no_card:
        why = "NCCL's network is Socket"
    hca = log.settings.get("NCCL_IB_HCA")
    though = f", though NCCL_IB_HCA names {len(hca.split(','))} cards" if hca else ""
    yield Finding.in_text(
        "socket_transport",
        f"ranks of different nodes talk over TCP{at}: {why}{though}.",
        expected=_due(net) or "RDMA (NET/IB, or a plugin), at the speed of the cards",
        obtained=_got(net) or f"NET/Socket{at}",
        remedy=remedy,
        confidence="certain" if used or (nodes or 1) > 1 else "likely",
    )


def _one_card(net: Network) -> Iterator[Finding]:
    """Yield that all GPUs of a node share one card."""
    if not net.is_spread or net.num_cards is None or (net.local_size or 0) < 2:
        return
    busbw, slow = net.busbw, _is_slow(net)
    speed = net.card_speed
    if speed is None and busbw is not None:
        fits = [card for card in CARDS if OF_A_CARD[0] <= busbw / card <= OF_A_CARD[1]]
        speed = min(fits, key=lambda card: abs(1 - busbw / card), default=None)
    is_one = bool(busbw and speed and OF_A_CARD[0] <= busbw / speed <= OF_A_CARD[1])
    if net.num_cards == 1:
        name = next(iter(net.log.cards.values()))[0]
        rate = f" of {_gbits(speed)}" if speed else ""
        yield Finding.in_text(
            "one_network_card",
            f"NCCL uses one network card{rate} ({name}) for {net.local_size} GPUs of a node"
            + (", and the bus bandwidth is that of one card." if is_one else "."),
            expected=_due(net) or "a card per GPU, or per two",
            obtained=_got(net) or f"{name} alone",
            remedy="NCCL_IB_HCA unset (or naming all cards), links up on every card (ibstat), and "
            "cards near the GPUs (nvidia-smi topo -m); else it is what such a node gives",
            confidence="likely" if slow or is_one else "possible",
        )
    elif is_one and slow and net.num_cards > 1 and speed is not None:
        hca = net.log.settings.get("NCCL_IB_HCA", "")
        yield Finding.in_text(
            "one_network_card",
            f"the bus bandwidth is that of one card of {_gbits(speed)}, of {net.num_cards} per node"
            + (f" (NCCL_IB_HCA is {hca})." if hca else "."),
            expected=_due(net) or f"up to {_gbs(net.num_cards * speed)} of {net.num_cards} cards",
            obtained=_got(net),
            remedy="start all ranks of a node (a GPU reaches the cards of its PCIe switch only), "
            "and check NCCL_IB_HCA and the links with ibstat",
            confidence="possible",
        )


def _is_slow(net: Network) -> bool:
    return bool(net.busbw and net.least and net.busbw < SLOW * net.least)


def _no_gpudirect(net: Network) -> Iterator[Finding]:
    log = net.log
    rdma = sum(count for kind, count in log.transports.items() if kind.startswith("NET/IB"))
    if not net.is_spread or not (rdma or log.cards):
        return
    missing = (rdma and not log.direct) or log.gdr is False
    if not missing:
        return
    near = net.topology is None or bool(net.topology.to_cards() & {"PIX", "PXB"})
    level = log.settings.get("NCCL_NET_GDR_LEVEL")
    yield Finding.in_text(
        "no_gpudirect",
        "network cards do not reach the memory of GPUs: "
        + (f"{rdma} channels go through NET/IB without GDRDMA" if rdma else "GPUDirect RDMA is off")
        + (f", with NCCL_NET_GDR_LEVEL={level}" if level is not None else "")
        + ("." if near else "; yet no card is on the same PCIe switch as a GPU."),
        expected=_due(net) or "channels via NET/IB/*/GDRDMA, at the speed of the cards",
        obtained=_got(net) or "data pass through the host's memory",
        remedy=PEERMEM if near else f"{PEERMEM}; and place cards on the switches of GPUs",
        confidence="likely" if near else "possible",
    )


def _slow_cards(net: Network) -> Iterator[Finding]:
    """Yield that the cards are slower than the machine's, or slower than they say."""
    cards, speed, busbw = net.num_cards, net.card_speed, net.busbw
    if not net.is_spread or not cards or busbw is None:
        return
    clean = net.log.direct > 0
    if speed is not None:
        whole = cards * speed
        if busbw < SLOW * whole:
            due = _due(net)
            yield Finding.in_text(
                "slow_link",
                f"the bus bandwidth is {busbw / whole:.0%} of what {cards} cards of "
                f"{_gbits(speed)} carry" + (", with GPUDirect RDMA." if clean else "."),
                expected=f"{_gbs(whole)} of {cards} cards" + (f"; {due}" if due else ""),
                obtained=_got(net),
                remedy="ibstat (the rate of each port: a cable may run at half its speed, two "
                "interfaces may share a port), ib_write_bw between the nodes, ACS off",
                confidence="likely" if clean else "possible",
            )
    elif _is_slow(net) and clean and cards > 1:
        yield Finding.in_text(
            "slow_link",
            "the bus bandwidth is below that of machines with such devices, with GPUDirect RDMA "
            f"and {cards} cards per node.",
            expected=_due(net),
            obtained=_got(net),
            remedy="ibstat (rate of each port), ib_write_bw between pairs of nodes, ACS off",
            confidence="possible",
        )


def _peers(net: Network) -> Iterator[Finding]:
    """Yield that GPUs of a node exchange data through the host, or across sockets."""
    log, topology = net.log, net.topology
    between = topology.between_gpus() if topology else set()
    off = log.settings.get("NCCL_P2P_DISABLE") not in (None, "0")
    level = log.settings.get("NCCL_P2P_LEVEL")
    if log.transports["SHM"] and not log.transports["P2P"] and (net.local_size or 2) > 1:
        why = "NCCL_P2P_DISABLE is set" if off else f"NCCL_P2P_LEVEL is {level}" if level else ""
        cards = catalogue_device(log.device()) or ""
        why = why or ("NCCL finds P2P disabled between GPUs" if log.peers_off else "")
        why = why or ("this driver gives such devices no peer access" if "rtx" in cards else "")
        spread = between and between <= {"SYS"}
        yield Finding.in_text(
            "no_peer_access",
            "GPUs of a node exchange data through the host's shared memory"
            + (f": {why}." if why else (", as their paths cross sockets." if spread else ".")),
            expected=_due(net) or "P2P between GPUs",
            obtained=_got(net) or "channels via SHM",
            remedy="unset it, and try NCCL_P2P_LEVEL=SYS"
            if off or level
            else "nvidia-smi topo -p2p r shows which pairs may; NCCL_P2P_LEVEL=SYS allows more",
            confidence="likely" if why or _is_slow(net) else "possible",
        )
    if topology is not None and not net.is_spread:
        yield from _cross_socket(topology, net)


def _cross_socket(topology: NodeTopology, net: Network | None = None) -> Iterator[Finding]:
    """Yield that a ring of all GPUs crosses CPU sockets."""
    if "SYS" not in topology.between_gpus() or topology.has_nvlink:
        return
    measured = net is not None and net.busbw is not None
    yield Finding.in_text(
        "cross_socket",
        "the ring of the GPUs crosses CPU sockets (SYS): its slowest link carries all.",
        expected=(_due(net) if net else "") or "within a socket, the bandwidth of PCIe",
        obtained=(_got(net) if net else "") or "paths of class SYS",
        remedy="use the GPUs of one socket per job, or two groups; NPS=4 on AMD; "
        "NCCL_P2P_LEVEL=PHB",
        confidence="likely" if measured else "possible",
    )


def _hang(net: Network) -> Iterator[Finding]:
    """Yield that peers cannot reach each other's memory, though NCCL tries."""
    log, topology = net.log, net.topology
    if topology is not None and topology.blocking:
        yield from _access_control(topology)
        return
    nvlink = topology.has_nvlink if topology else False
    if log.unfinished and log.transports["P2P"] and not nvlink and not net.is_spread:
        yield _control(
            "the first collective never ends, with peer access over PCIe: writes of one GPU to "
            "another are redirected and lost.",
            "channels via P2P, and no row of nccl-tests",
            "likely",
        )
    bad = [w.text for w in log.warnings if "Got completion" in w.text]
    local = [
        text
        for text in bad
        if re.search(r"(?:error |status=)4\b", text)
        or "vendor err 81" in text
        or "error 11" in text
    ]
    if local:
        yield _control(
            "a network card may not reach the memory of a GPU (a local protection error, with "
            f"GPUDirect RDMA{' in use' if log.direct else ''}).",
            local[0][:90],
            "likely" if log.direct else "possible",
        )
    elif bad:
        yield Finding.in_text(
            "slow_link",
            f"the network loses what a card sends: {bad[0][:120]}.",
            expected="every transfer is acknowledged",
            obtained=bad[0][:90],
            remedy="ibstat and counters of the switch for a failing link; on RoCE the GID "
            "(NCCL_IB_GID_INDEX) and lossless traffic classes; NCCL_IB_TIMEOUT=22",
            confidence="possible",
        )


def _access_control(topology: NodeTopology) -> Iterator[Finding]:
    if topology.blocking:
        yield _control(
            f"{topology.blocking} of {topology.bridges} PCIe bridges redirect traffic between "
            "devices (ACSCtl: SrcValid+, ReqRedir+).",
            f"access control on {topology.blocking} bridges",
            "likely",
        )


def _control(evidence: str, obtained: str, confidence: str) -> Finding:
    return Finding.in_text(
        "pci_access_control",
        f"{evidence} PCIe access control (ACS) or the IOMMU does so.",
        expected="lspci -vvv shows ACSCtl: SrcValid- ReqRedir- on all bridges",
        obtained=obtained,
        remedy="disable ACS (setpci, or in the BIOS) and the IOMMU (intel_iommu=off or "
        "iommu=pt); NCCL_P2P_DISABLE=1 shows whether that is it",
        confidence="likely" if confidence == "likely" else "possible",
    )


def _versions(net: Network) -> Iterator[Finding]:
    plain = {version.partition("+")[0] for version in net.log.versions}
    if len(plain) > 1:
        yield Finding.in_text(
            "version_mismatch",
            f"ranks use different versions of NCCL: {', '.join(sorted(plain))}.",
            expected="one version on all ranks",
            obtained=f"{len(plain)} versions",
            remedy="the same container, or the same wheel of torch, on all nodes",
            confidence="likely",
        )


# Warnings -----------------------------------------------------------------------------------------


def _warnings(net: Network) -> Iterator[Finding]:
    texts = [warning.text for warning in net.log.warnings]
    shm = [
        text
        for text in texts
        if "No space left on device" in text or "shared memory segment" in text
    ]
    if shm:
        yield Finding.in_text(
            "shared_memory_full",
            f"NCCL cannot create a segment of shared memory: {shm[0]}.",
            expected="a few tens of MB of /dev/shm per pair of ranks (docker gives 64 MB in all)",
            obtained=shm[-1][:90],
            remedy="docker run --shm-size=16g (or --ipc=host); in Kubernetes a memory-backed "
            "emptyDir at /dev/shm",
            confidence="certain",
        )
    wrong = [text for text in texts if "wrong type" in text]
    if wrong:
        yield Finding.in_text(
            "different_transports",
            "ranks chose different networks, such as InfiniBand on one node and sockets on "
            f"another ({wrong[0]}).",
            expected="the same network on all nodes (Using network ...)",
            obtained=", ".join(net.log.networks) or wrong[0],
            remedy="make RDMA work on every node (ibv_devinfo), with the same plugin and "
            "NCCL_IB_HCA; NCCL_IB_DISABLE=1 on all nodes works, slowly",
            confidence="certain",
        )
    yield from _devices(texts)
    yield from _interfaces(texts, net)
    yield from _verbs(texts)


def _devices(texts: Sequence[str]) -> Iterator[Finding]:
    """Yield warnings of GPUs: two ranks on one, or no memory left."""
    twice = [text for text in texts if "Duplicate GPU detected" in text]
    if twice:
        yield Finding.in_text(
            "duplicate_device",
            f"two ranks use the same GPU: {twice[0]}.",
            tuple(sorted({int(rank) for rank in re.findall(r"rank (\d+)", twice[0])})),
            expected="a GPU per rank",
            obtained=twice[0][:120],
            remedy="torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first "
            "collective, and --nproc-per-node no larger than the GPUs that are visible",
            confidence="certain",
        )
    failed = [text for text in texts if "out of memory" in text or "Failed to CUDA" in text]
    if failed:
        yield Finding.in_text(
            "out_of_memory",
            f"no device memory is left for NCCL's buffers: {'; '.join(failed[:2])}.",
            expected="a few hundred MB per communicator, outside of torch's allocator",
            obtained=failed[0][:90],
            remedy="leave memory free: a smaller micro-batch, or "
            "torch.cuda.set_per_process_memory_fraction",
            confidence="certain",
        )


def _verbs(texts: Sequence[str]) -> Iterator[Finding]:
    verbs = [text for text in texts if re.search(r"Call to ibv_(?!open_device)\w+ failed", text)]
    if verbs:
        memory = any("Cannot allocate memory" in text for text in verbs)
        yield Finding.in_text(
            "network_interface",
            f"an RDMA device cannot be used: {verbs[0]}.",
            expected="verbs succeed on every card that NCCL uses",
            obtained=verbs[0][:120],
            remedy="ulimit -l unlimited (docker run --ulimit memlock=-1 --cap-add=IPC_LOCK)"
            if memory
            else "leave the card out (NCCL_IB_HCA=^name), or make it work: ibv_devinfo, the same "
            "driver in the container as on the host, NCCL_IB_GID_INDEX on RoCE",
            confidence="likely",
        )


UNREACHABLE = (
    "Call to connect",
    "socketStartConnect",
    "Connection refused",
    "No route to host",
    "No interface found",
    "No usable",
    "Socket creation failed",
    "Call to bind failed",
    "no socket interface found",
)
"""Parts of warnings of addresses that cannot be reached, or of none at all."""


def _interfaces(texts: Sequence[str], net: Network) -> Iterator[Finding]:
    failures = [text for text in texts if any(part in text for part in UNREACHABLE)]
    if not failures:
        return
    bridge = any(" 172.17." in text or " 127." in text for text in failures)
    names = ", ".join(interface.split(":")[0] for interface in net.log.interfaces[:4])
    yield Finding.in_text(
        "network_interface",
        f"NCCL cannot reach another rank's address, or has none to use: {failures[0]}."
        + (" It is an address of a container's bridge." if bridge else ""),
        expected="an interface that all nodes reach, not docker0 or lo",
        obtained=f"interfaces {names}" if names else failures[0][:90],
        remedy="NCCL_SOCKET_IFNAME=the interface of the nodes' network; for containers --network "
        "host; open the firewall between the nodes",
        confidence="likely",
    )


CHECKS: tuple[Callable[[Network], Iterator[Finding]], ...] = (
    _hang,
    _sockets,
    _no_gpudirect,
    _one_card,
    _slow_cards,
    _peers,
    _versions,
)
"""Checks of a network, the most specific first."""
