"""First weights: those of torch, torchvision and transformers after ``torch.manual_seed(0)``.

The models, and a digest of each one's weights, are in tests/golden/g21_first_weights.json, which
tests/workload/test_weights.py reads without torch; here both are compared with real modules.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from simdp.workload import weights
from simdp.workload.models import AnyModel

torch = pytest.importorskip("torch")
nn = torch.nn

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "g21_first_weights.json").read_text())


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 7), nn.Linear(7, 3)])


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.fc = nn.Linear(8, 20)


class SequenceToSequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.src_embedding, self.tgt_embedding = nn.Embedding(20, 8), nn.Embedding(20, 8)
        self.transformer = nn.Transformer(8, 2, 2, 3, 16, batch_first=True)
        self.fc = nn.Linear(8, 20)


TORCH = {
    "mlp": MLP,
    "sequence": lambda: nn.Sequential(
        nn.Embedding(50, 12, padding_idx=0),
        nn.LSTM(12, 5, 2, bidirectional=True, batch_first=True),
        nn.GRU(10, 12, batch_first=True),
        nn.LayerNorm(12),
        nn.MultiheadAttention(12, 3),
        nn.TransformerEncoderLayer(12, 2, 20, batch_first=True),
        nn.Linear(12, 4, bias=False),
    ),
    "images": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2),
        nn.BatchNorm2d(8),
        nn.ConvTranspose2d(8, 6, (2, 3), groups=2),
        nn.PReLU(),
    ),
    "language_model": LanguageModel,
    "seq2seq": SequenceToSequence,
}

TRANSFORMERS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig"),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config"),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig"),
    "mpt": ("MptForCausalLM", "MptConfig"),
    "bert": ("BertForSequenceClassification", "BertConfig"),
    "bert_masked_lm": ("BertForMaskedLM", "BertConfig"),
    "t5": ("T5ForConditionalGeneration", "T5Config"),
    "vit": ("ViTForImageClassification", "ViTConfig"),
}


def construct(name):
    if name in TORCH:
        return TORCH[name]()
    transformers = pytest.importorskip("transformers")
    cls, config = TRANSFORMERS[name]
    keys = {k: v for k, v in GOLDEN["models"][name].items() if k not in ("kind", "pad_id", "head")}
    return getattr(transformers, cls)(getattr(transformers, config)(**keys))


def of_torch(construct, dtype):
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        torch.manual_seed(0)
        found = {name: p.detach().numpy() for name, p in construct().named_parameters()}
    finally:
        torch.set_default_dtype(torch.float32)
    return found


def assert_equal(spec, construct, dtype):
    model = TypeAdapter(AnyModel).validate_python(spec)
    wanted, found = of_torch(construct, dtype), weights.as_torch(model, dtype, 0)
    names = [p.name for p in model.graph.parameters]
    assert set(names) == set(wanted)
    for name in names:
        value = wanted[name]
        if dtype == "float32":
            np.testing.assert_array_equal(found[name], value, strict=True, err_msg=name)
        else:
            np.testing.assert_array_max_ulp(found[name], value, 3)
    return [found[name] for name in names]


@pytest.mark.parametrize("name", [*TORCH, *TRANSFORMERS])
@pytest.mark.filterwarnings("ignore")
def test_first_weights_are_torchs(name):
    spec = GOLDEN["models"][name]
    found = assert_equal(spec, lambda: construct(name), "float32")
    digest = hashlib.sha256(b"".join(array.tobytes() for array in found)).hexdigest()
    assert digest[:16] == GOLDEN["sha256"][name]
    assert_equal(spec, lambda: construct(name), "float64")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_first_weights_of_a_resnet_are_torchvisions(dtype):
    resnet = pytest.importorskip("torchvision").models.resnet
    spec = {"kind": "resnet", "block": "bottleneck", "layers": [1, 1, 1, 1], "num_classes": 10}
    spec |= {"groups": 4, "width_per_group": 4}
    assert_equal(
        spec,
        lambda: resnet.ResNet(
            resnet.Bottleneck, [1, 1, 1, 1], num_classes=10, groups=4, width_per_group=4
        ),
        dtype,
    )
