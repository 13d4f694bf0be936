"""Steps that were measured on one real device, which the catalogue's figures meet within 15 %."""

from pathlib import Path

import pytest
from for_each import for_each

import simdp
from simdp.scenario import checked

BERT = {"kind": "bert-base", "sequence_length": 384}
SGD = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}


@for_each(
    ("device", "precision", "model", "batch", "per_second"),
    [
        ("v100-sxm2-16gb", "full", "resnet50", 32, 32 / 97e-3),
        ("v100-sxm2-16gb", "full", "resnet50", 112, 367),
        ("v100-sxm2-16gb", "full", "resnet50", 128, 369),
        ("v100-sxm2-16gb", "full", BERT, 24, 42),
        ("v100-sxm2-16gb", "amp", BERT, 48, 189),
        ("rtx3090-24gb", "amp", "resnet50", 448, 905),
        ("rtx3090-24gb", "amp", BERT, 96, 172),
        ("rtx3090-24gb", "full", "resnet50", 224, 513),
        ("rtx3090-24gb", "full", BERT, 48, 85),
        ("rtxa6000-48gb", "amp", BERT, 192, 198),
        ("rtxa6000-48gb", "full", "resnet50", 496, 514),
        ("a100-sxm4-80gb", "full", "resnet50", 640, 1066),
        ("a100-sxm4-80gb", "full", BERT, 172, 239),
        ("a100-sxm4-80gb", "amp", BERT, 320, 443),
        ("h100-sxm5-80gb", "full", "resnet50", 640, 1894),
        ("h100-sxm5-80gb", "full", BERT, 172, 433),
        ("h100-sxm5-80gb", "amp", BERT, 320, 872),
        ("h100-pcie-80gb", "full", "resnet50", 640, 1197),
        ("h100-pcie-80gb", "amp", BERT, 320, 567),
        ("t4-16gb", "amp", "resnet50", 81, 81 / 420.7e-3),
        ("t4-16gb", "amp", "resnet50", 200, 200 / 923.5e-3),
    ],
)
def test_a_step_takes_about_what_a_real_one_did(device, precision, model, batch, per_second):
    kind = "tokens" if model is BERT else "images"
    raw = {
        "cluster": {
            "world_size": 1,
            "device": device,
            "topology": "ring",
            "link": {"alpha": "0 s", "bandwidth": "1 GB/s"},
        },
        "workload": {
            "model": model,
            "dataset": {"kind": kind, "num_samples": batch},
            "optimizer": "adamw" if model is BERT else SGD,
            "precision": precision,
            # Containers of NVIDIA, in which these were measured, allow TF32 in all products.
            "compute": {"kind": "roofline", "float32_matmul_precision": "high"},
            "microbatch": batch,
        },
        "numerics": False,
    }
    found = simdp.simulate(checked(raw, Path())).metrics["step_time_s"]
    assert found == pytest.approx(batch / per_second, rel=0.15)
