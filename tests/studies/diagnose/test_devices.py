"""Devices: what drivers call them, and what the catalogue does."""

from for_each import for_each

from simdp.studies.diagnose.devices import device_of, machines_with

NAMES = {
    "NVIDIA A100-SXM4-80GB": "a100-sxm4-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "Tesla V100-SXM2-32GB": "v100-sxm2-32gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm5-80gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA GeForce RTX 2080 Ti": "rtx2080ti-11gb",
    "NVIDIA RTX 6000 Ada Generation": "rtx6000ada-48gb",
    "Quadro RTX 6000": "quadro-rtx6000-24gb",
    "NVIDIA GB200": "gb200-186gb",
    "NVIDIA B200": "b200-180gb",
    "NVIDIA L4": "l4-24gb",
    "NVIDIA L40S": "l40s-48gb",
    "h100-sxm5-80gb": "h100-sxm5-80gb",
    "NVIDIA H100 NVL": None,
    "NVIDIA A100-PG509-200": None,
    "cpu": None,
    None: None,
}


@for_each(("said", "known"), NAMES.items())
def test_a_drivers_name_stands_for_one_device_or_for_none(said, known):
    assert device_of(said) == known


def test_machines_with_a_device_are_made_of_it():
    assert {"dgx-h100", "aws-p5"} <= set(machines_with("h100-sxm5-80gb"))
    assert "dgx-a100" not in machines_with("a100-sxm4-40gb")
