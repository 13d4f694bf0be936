"""Logs of ``NCCL_DEBUG=INFO``, and the devices that nccl-tests lists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class NcclWarning(NamedTuple):
    """A line of ``NCCL WARN``, or an error of NCCL without that word."""

    host: str  # empty if unknown
    text: str


@dataclass
class NcclDebugLog:
    """What a log has on NCCL's choices; empty fields are unknown."""

    hosts: list[str] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    networks: list[str] = field(default_factory=list)  # ``"IB"``, ``"Socket"``, plugins
    cards: dict[str, list[str]] = field(default_factory=dict)  # by host: ``"mlx5_0"``, ...
    fabric: str = ""  # ``"IB"`` or ``"RoCE"``
    speeds: dict[str, float] = field(default_factory=dict)  # of cards [bytes/s]
    interfaces: list[str] = field(default_factory=list)  # of sockets: ``"eth0:10.0.1.5"``
    # of channels between ranks: ``"P2P"``, ``"SHM"``, ``"NET/IB"``, ``"NET/Socket"``, ...
    transports: Counter[str] = field(default_factory=Counter)
    used_cards: set[str] = field(default_factory=set)  # numbers of the cards of channels
    direct: int = 0  # channels with GPUDirect RDMA
    # gdr: whether NCCL says that it uses GPUDirect RDMA; None if it does not say
    gdr: bool | None = None
    no_card: bool = False  # whether NCCL found no RDMA device
    peers_off: bool = False  # whether the driver gives GPUs no access to each other
    settings: dict[str, str] = field(default_factory=dict)  # environment variables
    algorithms: list[str] = field(default_factory=list)  # ``"RING"``, ... that were forced
    channels: int | None = None  # of collectives
    num_ranks: int | None = None
    num_nodes: int | None = None
    warnings: list[NcclWarning] = field(default_factory=list)
    # devices: by rank of nccl-tests: host and device
    devices: dict[int, tuple[str, str]] = field(default_factory=dict)
    # unfinished: whether a table of nccl-tests begins and has no row
    unfinished: bool = False

    def nodes(self) -> int | None:
        """Number of nodes, as far as known."""
        if self.num_nodes is not None:
            return self.num_nodes
        if self.devices:
            return len({host for host, _ in self.devices.values()})
        if len(self.hosts) > 1 or any(kind.startswith("NET") for kind in self.transports):
            return max(len(self.hosts), 2)
        return 1 if self.transports else None

    def world_size(self) -> int | None:
        """Number of ranks, as far as known."""
        return max(self.devices) + 1 if self.devices else self.num_ranks

    def device(self) -> str | None:
        """Name of the devices, as their driver writes it."""
        return next((device for _, device in self.devices.values()), None)


_HEAD = re.compile(r"(?<![\w.-])([\w.-]++):\d+:\d+ (?:\[\d+\]|NCCL)")
_VERSION = re.compile(r"NCCL version (\d[\w.]*)")
_NETWORK = re.compile(r"Using network (\S+)")
_CARDS = re.compile(r"\[\d+\]([\w.-]+):\d+/(IB|RoCE)")
_INTERFACES = re.compile(r"\[\d+\]([\w.-]+:[\d.]+)")
_CHANNEL = re.compile(r"(?:Channel|Ring) \d[^>]{1,80}>.{1,80}? via (\S+(?: shared memory)?)")
_GDR = re.compile(r"use ring PXN \d+ GDR (\d)")
_SPEED = re.compile(r"\+ NET\[([\d.]+)\] - NET/(\w+)")
_PORT = re.compile(r"\[(\d+)\] ?\w")
_PORT_SPEED = re.compile(r"\bspeed=(\d+)")
_SETTING = re.compile(r"\b(NCCL_\w++) set (?:by environment )?to (\S+)")
_CHANNELS = re.compile(r"(?<!\d)(\d++) coll channels")
_RANKS = re.compile(r"\bn[rR]anks (\d+)")
_NODES = re.compile(r"\bnNodes (\d+)")
_WARN = re.compile(r"\bWARN (.*)")
_ERROR = re.compile(r"((?:Test )?NCCL failure .*|NCCL error in.*)")
_DEVICE = re.compile(r"^#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s+(\S.*)$")
_TABLE = re.compile(r"^#\s+size\s+count\s+type")
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[A-Za-z]\w*\s")
_TAG = re.compile(r"^\s*(?:\[\d+,\d+\](?:<\w+>)?:?|\d+:(?=\s))")

TAGGED = tuple("[0123456789")
"""How lines begin that mpirun or srun may have tagged."""

TRANSPORTS = {"P2P": "P2P", "SHM": "SHM", "direct": "SHM", "COLLNET": "COLLNET", "NVLS": "NVLS"}
"""Beginnings of NCCL's words, and what they are."""


def read_nccl_log(lines: Sequence[str]) -> NcclDebugLog | None:
    """Read NCCL's lines; None if there are none."""
    log = NcclDebugLog()
    seen = False
    begun, rows = False, 0
    for tagged in lines:
        line = _TAG.sub("", tagged) if tagged[:24].lstrip()[:1] in TAGGED else tagged
        if match := _DEVICE.match(line):
            log.devices.setdefault(int(match[1]), (match[2], match[3].rstrip()))
            seen = True
        elif _TABLE.match(line):
            begun = True
        elif begun and _ROW.match(line):
            rows += 1
        elif "NCCL" in line or "WARN" in line:
            seen = _line(log, line) or seen
    log.unfinished = begun and not rows
    return log if seen or begun else None


def _line(log: NcclDebugLog, line: str) -> bool:
    """Take one line; return whether it is NCCL's."""
    head = _HEAD.search(line)
    host = head[1] if head else ""
    if host and host not in log.hosts:
        log.hosts.append(host)
    if match := _WARN.search(line) or _ERROR.search(line):
        log.warnings.append(NcclWarning(host, match[1].strip()))
        return True
    if match := _VERSION.search(line):
        if match[1] not in log.versions:
            log.versions.append(match[1])
        return True
    if "NCCL INFO" not in line and "] INFO " not in line:
        return False
    _info(log, line, host)
    return True


def _info(log: NcclDebugLog, line: str, host: str) -> None:
    if match := _CHANNEL.search(line):
        _channel(log, match[1])
    elif "NET/IB" in line and "No device found" in line:
        log.no_card = True
    elif "P2P is disabled between connected GPUs" in line:
        log.peers_off = True
    elif "GPU Direct RDMA Disabled" in line:
        log.gdr = False
    elif "GPU Direct RDMA" in line and "nabled" in line:
        log.gdr = True if log.gdr is None else log.gdr
    elif "NET/IB" in line and (cards := _CARDS.findall(line)):
        log.cards.setdefault(host, [name for name, _ in cards])
        log.fabric = cards[0][1]
    elif "NET/Socket" in line and (names := _INTERFACES.findall(line)):
        log.interfaces += [card for card in names if card not in log.interfaces]
    if (match := _NETWORK.search(line)) and match[1] not in log.networks:
        log.networks.append(match[1])
    if (match := _GDR.search(line)) and not (match[1] == "1" and log.gdr is False):
        log.gdr = match[1] == "1"
    if match := _SPEED.search(line):
        log.speeds.setdefault(match[2], float(match[1]) * 1e9)
    elif (
        "NET/IB" in line
        and (port := _PORT.search(line, line.index("NET/IB")))
        and (match := _PORT_SPEED.search(line, port.end()))
    ):
        log.speeds.setdefault(port[1], float(match[1]) * 1e6 / 8)
    if match := _SETTING.search(line):
        log.settings[match[1]] = match[2].rstrip(".")
        if match[1] == "NCCL_ALGO":
            log.algorithms.append(match[2].rstrip(".").upper())
    for key, pattern in (("channels", _CHANNELS), ("num_ranks", _RANKS), ("num_nodes", _NODES)):
        if match := pattern.search(line):
            setattr(log, key, max(int(match[1]), getattr(log, key) or 0))


def _channel(log: NcclDebugLog, way: str) -> None:
    """Count a channel: ``P2P/IPC``, ``SHM/direct``, ``NET/IB/0/GDRDMA``, ``NET/Socket/0``."""
    parts = way.split("/")
    if parts[0] == "NET" and len(parts) > 1:
        # of plugins, such as IBext_v8 and AWS Libfabric, as well
        log.transports[f"NET/{parts[1]}"] += 1
        if len(parts) > 2:
            log.used_cards.add(parts[2].split("(")[0])
        log.direct += "GDRDMA" in way
        return
    word = next((ours for theirs, ours in TRANSPORTS.items() if way.startswith(theirs)), parts[0])
    log.transports[word] += 1
