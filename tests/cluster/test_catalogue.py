"""The catalogue: every real part loads, is named as the README says, and gives its sources."""

from pathlib import Path

from for_each import for_each
from pydantic import TypeAdapter

from simdp.cluster.hardware import (
    DEVICES,
    LINKS,
    MACHINES,
    AnyDevice,
    AnyLink,
    describe_device,
    describe_link,
    read_machine,
)
from simdp.units import parse

PROMISED_DEVICES = [
    "t4-16gb",
    "v100-sxm2-16gb",
    "v100-sxm2-32gb",
    "a100-sxm4-40gb",
    "a100-sxm4-80gb",
    "h100-sxm5-80gb",
    "h200-sxm5-141gb",
    "rtx2080ti-11gb",
    "rtx3090-24gb",
    "rtx4090-24gb",
    "a10g-24gb",
    "l4-24gb",
    "l40s-48gb",
    "b200-180gb",
    "gb200-186gb",
    "mi300x-192gb",
]
PROMISED_LINKS = [
    "pcie3-x16",
    "pcie4-x16",
    "pcie5-x16",
    "nvlink2",
    "nvlink3",
    "nvlink4",
    "nvlink5",
    "xgmi-mi300x",
    "10gbe",
    "25gbe",
    "50gbe",
    "100gbe",
    "ib-edr",
    "ib-hdr",
    "ib-ndr",
    "roce-100g",
    "efa-100g",
    "slingshot-11",
]

every_device = for_each("name", DEVICES.names())
every_link = for_each("name", LINKS.names())


def test_every_promised_part_is_there():
    assert set(PROMISED_DEVICES) <= set(DEVICES.names())
    assert set(PROMISED_LINKS) <= set(LINKS.names())


@every_device
def test_a_device_loads_by_its_name(name):
    loaded = TypeAdapter(AnyDevice).validate_python(name)
    assert loaded.name == name
    assert {"float32", "float16"} <= set(loaded.peak)
    assert 1e9 < loaded.memory < 1e12
    assert 1e11 < loaded.memory_bandwidth < 1e13
    assert all(0 < loaded.rate(dtype) <= peak for dtype, peak in loaded.peak.items())


@every_link
def test_a_link_loads_by_its_name(name):
    loaded = TypeAdapter(AnyLink).validate_python(name)
    assert loaded.name == name
    assert 0 < loaded.alpha < 1e-3
    assert 1e8 < loaded.bandwidth < 1e12


@every_device
def test_every_figure_of_a_device_has_a_source(name):
    entry = dict(DEVICES.read(name))
    assert set(entry.pop("source")) == set(entry)


@every_link
def test_every_figure_of_a_link_has_a_source(name):
    entry = dict(LINKS.read(name))
    assert set(entry.pop("source")) == set(entry)


@every_device
def test_the_memory_of_a_device_is_the_one_in_its_name(name):
    gigabytes = float(name.rsplit("-", 1)[1].removesuffix("gb"))
    memory = parse(DEVICES.read(name)["memory"], "data size")
    assert 0.88 * gigabytes * 2**30 < memory <= gigabytes * 2**30  # some is reserved for ECC


@for_each("rate", [10, 25, 50, 100])
def test_an_ethernet_link_carries_the_rate_in_its_name_at_most(rate):
    assert parse(LINKS.read(f"{rate}gbe")["bandwidth"], "bandwidth") <= rate * 1e9 / 8


@every_device
def test_a_device_is_described_in_one_line(name):
    line = describe_device(name)
    assert "float32" in line
    assert "\n" not in line


@every_link
def test_a_link_is_described_in_one_line(name):
    line = describe_link(name)
    assert "/s" in line
    assert "\n" not in line


def _at(entry, key):
    for part in key.split("."):
        entry = entry[int(part)] if isinstance(entry, list) else entry[part]
    return entry


@for_each("name", MACHINES.names())
def test_constants_that_were_fitted_to_another_machine_are_its(name):
    entry = read_machine(name, Path())
    taken = {} if entry.calibration is None else entry.calibration.taken
    for key, machine in taken.items():
        other = read_machine(machine, Path())
        assert key in entry.calibration.intervals
        assert key in other.calibration.intervals
        assert _at(entry.model_dump(), key) == _at(other.model_dump(), key)


def test_a_device_that_a_machine_writes_out_has_the_catalogues_figures():
    """Its efficiencies may be its own, since these were measured."""
    written = 0
    for name in MACHINES.names():
        device = read_machine(name, Path()).cluster["device"]
        if isinstance(device, dict) and device.get("name") in DEVICES.names():
            known = DEVICES.figures(device["name"])
            assert {key: known["peak"][key] for key in device["peak"]} == device["peak"], name
            for key in ("memory", "memory_bandwidth", "launch"):
                assert device[key] == known[key], name
            written += 1
    assert written
