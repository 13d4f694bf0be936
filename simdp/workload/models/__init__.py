"""Models by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.spec import one_of
from simdp.workload.models.base import Model
from simdp.workload.models.einsum import EinsumModel
from simdp.workload.models.mlp import MLP

MODELS: dict[str, type[Model]] = {"einsum": EinsumModel, "mlp": MLP}
AnyModel = Annotated[Model, one_of("model", MODELS)]

__all__ = ["MODELS", "AnyModel", "Model"]
