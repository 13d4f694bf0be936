"""Models by kind; this table is the one place of registration.

A file in ``presets/`` gives a real model its name: a kind of the table, its keys, and the source.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from simdp.files import Catalogue
from simdp.spec import one_of
from simdp.workload.models.base import Model
from simdp.workload.models.bert import Bert
from simdp.workload.models.einsum import EinsumModel
from simdp.workload.models.gpt2 import GPT2
from simdp.workload.models.inception import Inception
from simdp.workload.models.mlp import MLP
from simdp.workload.models.resnet import ResNet
from simdp.workload.models.sequential import Sequential
from simdp.workload.models.transformer import Transformer
from simdp.workload.models.vgg import VGG
from simdp.workload.models.yolo import YOLO

MODELS: dict[str, type[Model]] = {
    "bert": Bert,
    "einsum": EinsumModel,
    "gpt2": GPT2,
    "inception": Inception,
    "mlp": MLP,
    "resnet": ResNet,
    "sequential": Sequential,
    "transformer": Transformer,
    "vgg": VGG,
    "yolo": YOLO,
}
PRESETS = Catalogue(Path(__file__).parent / "presets")
AnyModel = Annotated[Model, one_of("model", MODELS, presets=PRESETS)]

__all__ = ["MODELS", "PRESETS", "AnyModel", "Model"]
