"""The measured models in torch, with the parameters of simdp's: same names, shapes and order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import log, sqrt
from typing import Any

import torch
from torch import nn

from simdp.probes.language import GPT2, Llama
from simdp.probes.zoo import Settings, samples

Tensor = Any

BERT_VOCABULARY, BERT_PLACES, BERT_EPS, BERT_DROPOUT = 30522, 512, 1e-12, 0.1
"""Of BERT-Base (Devlin et al., NAACL 2019, arXiv 1810.04805)."""


def build(settings: Settings) -> nn.Module:
    """Make a model of `simdp.probes.zoo`, with weights that depend on torch's seed alone."""
    kinds: dict[str, Callable[[Settings], nn.Module]] = {
        "mlp": MLP,
        "transformer": Transformer,
        "bert-base": Bert,
        "resnet50": ResNet50,
        "gpt2": GPT2,
        "llama": Llama,
    }
    return kinds[settings["kind"]](settings)


def batch(settings: Settings, microbatch: int, device: Any) -> tuple[Tensor, Tensor]:
    """Draw one batch of inputs and targets, which is used in every step."""
    kind = samples(settings)
    shape = (microbatch, *kind.shape)
    if kind.num_tokens is None:
        x = torch.randn(shape, device=device)
    else:
        x = torch.randint(kind.num_tokens, shape, device=device)
    targets = shape if kind.per_token else shape[:1]
    return x, torch.randint(kind.num_classes, targets, device=device)


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy, the mean over samples or tokens, in 32 bit."""
    return nn.functional.cross_entropy(output.flatten(0, -2).float(), target.flatten())


class MLP(nn.Module):
    """Linear maps with an activation between them."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        widths, bias = settings["widths"], settings["bias"]
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in pairwise(widths))
        acts = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
        self.acts = nn.ModuleList(acts[settings["activation"]]() for _ in self.layers[1:])

    def forward(self, x: Tensor) -> Tensor:
        """Map features to classes."""
        for act, layer in zip(self.acts, self.layers, strict=False):
            x = act(layer(x))
        return self.layers[-1](x)


def _encoder_layer(d: int, heads: int, wide: int, settings: dict[str, Any]) -> nn.Module:
    return nn.TransformerEncoderLayer(d, heads, wide, batch_first=True, **settings)


class Layers(nn.Module):
    """Encoder layers one after the other, as nn.TransformerEncoder has them in training."""

    def __init__(self, layers: list[nn.Module], norm: nn.Module | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """Map hidden states to hidden states."""
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=mask is not None)
        return h if self.norm is None else self.norm(h)


class Transformer(nn.Module):
    """A causal language model of nn.TransformerEncoder's layers."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        d, length, p = settings["d_model"], settings["sequence_length"], settings["dropout"]
        self.embedding = nn.Embedding(settings["vocab_size"], d)
        self.dropout = nn.Dropout(p)
        keys = ("dropout", "activation", "norm_first")
        shared = {key: settings[key] for key in keys}
        sizes = d, settings["nhead"], settings["dim_feedforward"]
        layers = [_encoder_layer(*sizes, shared) for _ in range(settings["num_layers"])]
        self.encoder = Layers(layers, nn.LayerNorm(d) if settings["norm_first"] else None)
        self.fc = nn.Linear(d, settings["vocab_size"])
        self.d_model = d
        # Plain attributes: DDP would send registered buffers from rank 0 before every forward.
        self.places = _sinusoids(length, d)
        self.mask = nn.Transformer.generate_square_subsequent_mask(length)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens to scores of the next one."""
        self.places, self.mask = self.places.to(x.device), self.mask.to(x.device)
        h = self.dropout(self.embedding(x) * sqrt(self.d_model) + self.places)
        return self.fc(self.encoder(h, self.mask))


def _sinusoids(length: int, d: int) -> Tensor:
    """Positional encoding of Vaswani et al., "Attention is all you need", NeurIPS 2017."""
    place = torch.arange(length).unsqueeze(1)
    pace = torch.exp(torch.arange(0, d, 2) * (-log(10_000.0) / d))
    found = torch.zeros(length, d)
    found[:, 0::2] = torch.sin(place * pace)
    found[:, 1::2] = torch.cos(place * pace)[:, : d // 2]
    return found


class Bert(nn.Module):
    """BERT for classification, of nn.TransformerEncoder's layers."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        d = settings["hidden_size"]
        self.embedding = nn.Embedding(BERT_VOCABULARY, d)
        self.position_embedding = nn.Embedding(BERT_PLACES, d)
        self.token_type_embedding = nn.Embedding(2, d)
        self.norm = nn.LayerNorm(d, eps=BERT_EPS)
        self.dropout = nn.Dropout(BERT_DROPOUT)
        shared = {"dropout": BERT_DROPOUT, "activation": "gelu", "layer_norm_eps": BERT_EPS}
        sizes = d, settings["num_attention_heads"], settings["intermediate_size"]
        count = settings["num_hidden_layers"]
        self.encoder = Layers([_encoder_layer(*sizes, shared) for _ in range(count)], None)
        self.pooler = nn.Linear(d, d)
        self.classifier = nn.Linear(d, settings["num_labels"])

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens to scores of the labels."""
        places = torch.arange(x.shape[1], device=x.device)
        h = self.embedding(x) + self.token_type_embedding(torch.zeros_like(x))
        h = self.dropout(self.norm(h + self.position_embedding(places)))
        first = self.encoder(h, None)[:, 0]
        return self.classifier(self.dropout(torch.tanh(self.pooler(first))))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut (He et al., CVPR 2016)."""

    def __init__(self, fan_in: int, planes: int, stride: int) -> None:
        super().__init__()
        wide = 4 * planes
        self.conv1 = nn.Conv2d(fan_in, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, wide, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(wide)
        self.relu1, self.relu2, self.relu = nn.ReLU(), nn.ReLU(), nn.ReLU()
        self.downsample: nn.Module | None = None
        if stride > 1 or fan_in != wide:
            shortcut = nn.Conv2d(fan_in, wide, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(wide))

    def forward(self, x: Tensor) -> Tensor:
        """Map images of ``fan_in`` channels to images of ``4 planes``."""
        h = self.relu1(self.bn1(self.conv1(x)))
        h = self.relu2(self.bn2(self.conv2(h)))
        h = self.bn3(self.conv3(h))
        return self.relu(h + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """ResNet-50 with torchvision's names and strides."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        fan_in = 64
        for stage, depth in enumerate((3, 4, 6, 3)):
            planes = 64 * 2**stage
            blocks = []
            for number in range(depth):
                blocks.append(Bottleneck(fan_in, planes, 2 if stage and not number else 1))
                fan_in = 4 * planes
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(fan_in, settings["num_classes"])

    def forward(self, x: Tensor) -> Tensor:
        """Map images to classes."""
        h = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            h = stage(h)
        return self.fc(self.avgpool(h).flatten(1))
