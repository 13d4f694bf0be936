"""Datasets by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.spec import one_of
from simdp.workload.datasets.base import Dataset

DATASETS: Family[Dataset] = Family(
    "datasets",
    Dataset,
    __name__,
    {
        "blobs": "synthetic:Blobs",
        "csv": "files:Csv",
        "digits": "synthetic:Digits",
        "images": "synthetic:Images",
        "none": "base:NoData",
        "npz": "files:Npz",
        "regression": "synthetic:Regression",
        "tokens": "synthetic:Tokens",
    },
)
DATASET = one_of("dataset", DATASETS)
AnyDataset = Annotated[Dataset, DATASET]

__all__ = ["DATASET", "DATASETS", "AnyDataset", "Dataset"]
