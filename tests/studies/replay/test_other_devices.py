"""What drivers call devices is found in the catalogue."""

from for_each import for_each

from simdp.studies.replay.devices import catalogue_name


@for_each(
    ("said", "name"),
    [
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("NVIDIA A100-PG509-200", "a100-sxm4-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA H200", "h200-sxm5-141gb"),
        ("Tesla T4", "t4-16gb"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti-11gb"),
        ("NVIDIA GeForce RTX 4090", "rtx4090-24gb"),
        ("NVIDIA L4", "l4-24gb"),
        ("NVIDIA L40S", "l40s-48gb"),
        ("dgx-of-tomorrow", None),
        (None, None),
    ],
)
def test_names_of_drivers(said, name):
    assert catalogue_name(said) == name
