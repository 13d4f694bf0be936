"""Models by kind; this table is the one place of registration.

A file in ``presets/`` gives a real model its name: a kind of the table, its keys, and the source.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from simdp.family import Family
from simdp.files import Catalogue
from simdp.spec import one_of
from simdp.workload.models.base import Model

MODELS: Family[Model] = Family(
    "models",
    Model,
    __name__,
    {
        "bert": "Bert",
        "einsum": "EinsumModel",
        "gpt2": "GPT2",
        "inception": "Inception",
        "mlp": "MLP",
        "parameters": "Parameters",
        "profile": "Profile",
        "resnet": "ResNet",
        "sequential": "Sequential",
        "transformer": "Transformer",
        "vgg": "VGG",
        "yolo": "YOLO",
    },
)
PRESETS = Catalogue(Path(__file__).parent / "presets")
MODEL = one_of("model", MODELS, presets=PRESETS, shared=True)
AnyModel = Annotated[Model, MODEL]

__all__ = ["MODEL", "MODELS", "PRESETS", "AnyModel", "Model"]
