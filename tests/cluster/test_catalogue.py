"""The catalogue: every real part loads, is named as the README says, and gives its sources."""

from pathlib import Path

import pytest
from for_each import for_each
from pydantic import TypeAdapter, ValidationError

from simdp.cluster.hardware import (
    DEVICES,
    LINKS,
    MACHINES,
    AnyDevice,
    AnyLink,
    catalogue_device,
    close_devices,
    describe_device,
    describe_link,
    device_option,
    driver_name,
    machines_with,
    read_machine,
)
from simdp.errors import ScenarioError
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
DRIVER_NAMES = {
    "NVIDIA A100-SXM4-80GB": "a100-sxm4-80gb",
    "A100-SXM-80GB": "a100-sxm4-80gb",
    "NVIDIA PG509-210": "a100-sxm4-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb",
    "A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA A100-PG509-200": "a100-sxm4-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "Tesla V100-SXM2-16GB": "v100-sxm2-16gb",
    "Tesla V100-SXM2-32GB": "v100-sxm2-32gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm5-80gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA H200": "h200-sxm5-141gb",
    "NVIDIA B200": "b200-180gb",
    "NVIDIA GB200": "gb200-186gb",
    "NVIDIA GeForce RTX 2080 Ti": "rtx2080ti-11gb",
    "GeForce RTX 2080 Ti": "rtx2080ti-11gb",
    "NVIDIA GeForce RTX 3090": "rtx3090-24gb",
    "GeForce RTX 3090": "rtx3090-24gb",
    "NVIDIA GeForce RTX 4090": "rtx4090-24gb",
    "NVIDIA GeForce RTX 5090": "rtx5090-32gb",
    "Tesla T4": "t4-16gb",
    "NVIDIA A10G": "a10g-24gb",
    "NVIDIA L4": "l4-24gb",
    "NVIDIA L40S": "l40s-48gb",
    "Quadro RTX 6000": "quadro-rtx6000-24gb",
    "NVIDIA RTX A6000": "rtxa6000-48gb",
    "NVIDIA RTX 6000 Ada Generation": "rtx6000ada-48gb",
    "AMD Instinct MI300X": "mi300x-192gb",
    "AMD Instinct MI300X OAM": "mi300x-192gb",
    "H100_SXM5_80GB": "h100-sxm5-80gb",
}
OTHER_DEVICES = [
    "NVIDIA A100-PCIE-40GB",
    "A100-PCIE-40GB",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "NVIDIA A100-PG509-200 MIG 1g.5gb",
    "NVIDIA A800-SXM4-80GB",
    "NVIDIA A10",
    "NVIDIA L40",
    "NVIDIA H100",  # the SXM5 card of 94 GB
    "NVIDIA H100 NVL",
    "NVIDIA H200 NVL",
    "NVIDIA GH200 480GB",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "Quadro RTX 6000 with Max-Q Design",
    "Tesla V100-PCIE-16GB",
    "Tesla V100-SXM3-32GB",
    "AMD Instinct MI250X",
    "cpu",
    "",
    None,
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
    assert {"capability", "multiprocessors"} <= loaded.model_fields_set


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


@for_each(("name", "device"), [*DRIVER_NAMES.items(), *((name, None) for name in OTHER_DEVICES)])
def test_a_drivers_name_is_that_of_one_device_or_of_none(name, device):
    assert catalogue_device(name) == device


@every_device
def test_no_two_devices_share_a_name(name):
    assert catalogue_device(name) == name
    for spelling in DEVICES.read(name)["driver_names"]:
        assert catalogue_device(spelling) == name
    assert catalogue_device(driver_name(name)) == name
    assert "driver_names" not in DEVICES.figures(name)


def test_a_device_outside_the_catalogue_has_no_drivers_name():
    assert driver_name("simulated device") is None


def test_another_card_is_refused_with_the_cards_of_its_model():
    message = (
        r"^--device: unknown device 'A100-PCIE-40GB'. Did you mean 'a100-pcie-80gb', "
        r"'a100-sxm4-40gb' or 'a100-sxm4-80gb'\? Known: a100-pcie-80gb, .* simdp list devices\.$"
    )
    with pytest.raises(ScenarioError, match=message):
        device_option("A100-PCIE-40GB")
    assert close_devices("NVIDIA GeForce RTX 3090 Ti") == ["rtx3090-24gb"]
    assert close_devices("NVIDIA L40") == ["l40s-48gb"]


def test_a_scenario_with_a_drivers_name_is_pointed_to_the_catalogues():
    with pytest.raises(ValidationError, match=r"Did you mean 'a100-sxm4-80gb'\?"):
        TypeAdapter(AnyDevice).validate_python("NVIDIA A100-SXM4-80GB")


def test_machines_with_a_device_are_made_of_it():
    assert {"dgx-h100", "aws-p5"} <= set(machines_with("h100-sxm5-80gb"))
    assert "dgx-a100" not in machines_with("a100-sxm4-40gb")
