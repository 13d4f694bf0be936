"""Data sets by kind; this table is the one place of registration."""

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
        "blobs": "blobs:Blobs",
        "csv": "csv:Csv",
        "digits": "digits:Digits",
        "images": "images:Images",
        "none": "none:NoData",
        "npz": "npz:Npz",
        "regression": "regression:Regression",
        "tokens": "tokens:Tokens",
    },
)
DATASET = one_of("dataset", DATASETS)
AnyDataset = Annotated[Dataset, DATASET]

__all__ = ["DATASET", "DATASETS", "AnyDataset", "Dataset"]
