"""Models by kind; this table is the one place of registration.

A file in ``presets/`` defines a named model: a kind of the table, its keys, and the source.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import TypeAdapter

from simdp.family import Family
from simdp.files import Catalogue
from simdp.spec import one_of
from simdp.workload.models.base import Model

MODELS: Family[Model] = Family(
    "models",
    Model,
    __name__,
    {
        "bert": "bert:Bert",
        "einsum": "operators:EinsumModel",
        "gpt2": "gpt:GPT2",
        "gpt_neox": "gpt:GPTNeoX",
        "inception": "convnets:Inception",
        "llama": "llama:Llama",
        "mask_rcnn_fpn": "detection:MaskRCNN",
        "mistral": "llama:Mistral",
        "mlp": "sequential:MLP",
        "mpt": "gpt:Mpt",
        "operators": "operators:Operators",
        "parameters": "operators:Parameters",
        "profile": "operators:Profile",
        "qwen2": "llama:Qwen2",
        "resnet": "convnets:ResNet",
        "retinanet_fpn": "detection:RetinaNet",
        "sequential": "sequential:Sequential",
        "ssd_resnet": "detection:SSD",
        "t5": "t5:T5",
        "transformer": "transformer:Transformer",
        "transformers": "from_config:Transformers",
        "unet": "detection:UNet",
        "vgg": "convnets:VGG",
        "vit": "vit:ViT",
        "yolo": "detection:YOLO",
    },
)
PRESETS = Catalogue(Path(__file__).parent / "presets")
MODEL = one_of("model", MODELS, presets=PRESETS, shared=True)
AnyModel = Annotated[Model, MODEL]


def read_model(value: object, base: Path | None = None) -> Model:
    """Make the model of a value as in YAML, read from its files.

    Parameters
    ----------
    value : str or mapping
        Name of a preset, a kind, or a mapping with a kind.
    base : Path, optional
        Folder that relative paths start from; by default the current one.

    Raises
    ------
    pydantic.ValidationError, ScenarioError
        If the value or a file is invalid.
    """
    model: Model = TypeAdapter(AnyModel).validate_python(value)
    return model.read(base or Path(), 4)


USUAL_LAYERS = 50
"""Default layers of a model known only by its number of parameters and a step's time: about as
many as ResNet-50 and BERT have with large weights."""


def in_layers(model: object) -> object:
    """Set a default ``num_layers`` for a model of which only the number of parameters is known."""
    bare = getattr(MODEL.member(model), "brings_times", True) is False
    if not bare or not isinstance(model, dict) or "num_layers" in model:
        return model
    there = model.get("num_params")
    return {**model, "num_layers": min(there, USUAL_LAYERS) if isinstance(there, int) else 1}


__all__ = ["MODEL", "MODELS", "PRESETS", "AnyModel", "Model", "in_layers", "read_model"]
