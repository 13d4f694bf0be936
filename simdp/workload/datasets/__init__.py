"""Data sets by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.spec import one_of
from simdp.workload.datasets.base import Dataset
from simdp.workload.datasets.blobs import Blobs
from simdp.workload.datasets.digits import Digits
from simdp.workload.datasets.images import Images
from simdp.workload.datasets.npz import Npz
from simdp.workload.datasets.regression import Regression
from simdp.workload.datasets.tokens import Tokens

DATASETS: dict[str, type[Dataset]] = {
    "blobs": Blobs,
    "digits": Digits,
    "images": Images,
    "npz": Npz,
    "regression": Regression,
    "tokens": Tokens,
}
AnyDataset = Annotated[Dataset, one_of("dataset", DATASETS)]

__all__ = ["DATASETS", "AnyDataset", "Dataset"]
