"""Models that the probes measure.

The same settings build the torch module (`networks`) and the simulated model; their parameters have
the same names, shapes and order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import log, sqrt

import torch
from torch import Tensor, nn

from simdp.probes.zoo import (
    BERT_VOCABULARY,
    BertSettings,
    GPT2Settings,
    LlamaSettings,
    MLPSettings,
    ResNetSettings,
    Settings,
    TransformerSettings,
)

# Language -----------------------------------------------------------------------------------------


def _heads(x: Tensor, count: int) -> Tensor:
    """Split the last axis: `(batch, tokens, d)` to `(batch, count, tokens, d / count)`."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class Turned(nn.Module):
    """A linear map with a weight of `(in, out)`, as in GPT-2's code."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_in, fan_out) * 0.02)
        self.bias = nn.Parameter(torch.zeros(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        """Map features to features."""
        return nn.functional.linear(x, self.weight.t(), self.bias)


class GPT2Attention(nn.Module):
    """Causal attention with one map for queries, keys and values."""

    def __init__(self, settings: GPT2Settings) -> None:
        super().__init__()
        d, self.heads, self.p = settings.n_embd, settings.n_head, settings.attn_pdrop
        self.c_attn, self.c_proj = Turned(d, 3 * d), Turned(d, d)
        self.dropout = nn.Dropout(settings.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states to hidden states."""
        q, k, v = (_heads(part, self.heads) for part in self.c_attn(x).chunk(3, -1))
        p = self.p if self.training else 0.0
        h = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.dropout(self.c_proj(h.transpose(1, 2).flatten(2)))


class GPT2MLP(nn.Module):
    """Two maps with a GELU between them, by tanh."""

    def __init__(self, settings: GPT2Settings) -> None:
        super().__init__()
        d = settings.n_embd
        self.c_fc, self.c_proj = Turned(d, 4 * d), Turned(4 * d, d)
        self.act, self.dropout = nn.GELU(approximate="tanh"), nn.Dropout(settings.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states to hidden states."""
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class TorchGPT2Block(nn.Module):
    """Attention and two maps, each behind a norm and with a shortcut."""

    def __init__(self, settings: GPT2Settings) -> None:
        super().__init__()
        d, eps = settings.n_embd, settings.layer_norm_epsilon
        self.ln_1, self.attn = nn.LayerNorm(d, eps), GPT2Attention(settings)
        self.ln_2, self.mlp = nn.LayerNorm(d, eps), GPT2MLP(settings)

    def forward(self, h: Tensor) -> Tensor:
        """Map hidden states to hidden states."""
        h = h + self.attn(self.ln_1(h))
        return h + self.mlp(self.ln_2(h))


class TorchGPT2(nn.Module):
    """GPT-2 with the names of transformers' GPT2LMHeadModel (Radford et al., OpenAI 2019)."""

    def __init__(self, settings: GPT2Settings) -> None:
        super().__init__()
        d = settings.n_embd
        self.transformer = parts = nn.Module()
        parts.wte = nn.Embedding(settings.vocab_size, d)
        parts.wpe = nn.Embedding(settings.n_positions, d)
        parts.drop = nn.Dropout(settings.embd_pdrop)
        parts.h = nn.ModuleList(TorchGPT2Block(settings) for _ in range(settings.n_layer))
        parts.ln_f = nn.LayerNorm(d, settings.layer_norm_epsilon)
        for embedding in (parts.wte, parts.wpe):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens to scores of the next one."""
        parts = self.transformer
        places = torch.arange(x.shape[1], device=x.device)
        h = parts.drop(parts.wte(x) + parts.wpe(places))
        for block in parts.h:
            h = block(h)
        return nn.functional.linear(parts.ln_f(h), parts.wte.weight)


class TorchRMSNorm(nn.Module):
    """RMSNorm in 32 bit, as computed by transformers."""

    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Scale each token to a mean square of 1."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding by halves (Su et al., RoFormer, arXiv 2104.09864)."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class LlamaAttention(nn.Module):
    """Causal attention with keys and values shared by several queries."""

    def __init__(self, settings: LlamaSettings) -> None:
        super().__init__()
        d, self.heads = settings.hidden_size, settings.num_attention_heads
        self.shared = settings.num_key_value_heads
        narrow = d // self.heads * self.shared
        self.q_proj, self.k_proj = nn.Linear(d, d, bias=False), nn.Linear(d, narrow, bias=False)
        self.v_proj, self.o_proj = nn.Linear(d, narrow, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map hidden states to hidden states."""
        q, k = _heads(self.q_proj(x), self.heads), _heads(self.k_proj(x), self.shared)
        q, k = _rotated(q, cos, sin).to(q.dtype), _rotated(k, cos, sin).to(k.dtype)
        v = _heads(self.v_proj(x), self.shared)
        repeats = self.heads // self.shared
        k, v = (part.repeat_interleave(repeats, 1) if repeats > 1 else part for part in (k, v))
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(h.transpose(1, 2).flatten(2))


class LlamaMLP(nn.Module):
    """SwiGLU (Shazeer, arXiv 2002.05202)."""

    def __init__(self, settings: LlamaSettings) -> None:
        super().__init__()
        d, wide = settings.hidden_size, settings.intermediate_size
        self.gate_proj, self.up_proj = (nn.Linear(d, wide, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(wide, d, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states to hidden states."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    """Attention and SwiGLU, each behind a norm and with a shortcut."""

    def __init__(self, settings: LlamaSettings) -> None:
        super().__init__()
        d, eps = settings.hidden_size, settings.rms_norm_eps
        self.self_attn, self.mlp = LlamaAttention(settings), LlamaMLP(settings)
        self.input_layernorm, self.post_attention_layernorm = (
            TorchRMSNorm(d, eps),
            TorchRMSNorm(d, eps),
        )

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map hidden states to hidden states."""
        h = h + self.self_attn(self.input_layernorm(h), cos, sin)
        return h + self.mlp(self.post_attention_layernorm(h))


class TorchLlama(nn.Module):
    """Llama with tied embeddings and the names of transformers' LlamaForCausalLM."""

    def __init__(self, settings: LlamaSettings) -> None:
        super().__init__()
        d = settings.hidden_size
        self.model = parts = nn.Module()
        parts.embed_tokens = nn.Embedding(settings.vocab_size, d)
        layers = (LlamaLayer(settings) for _ in range(settings.num_hidden_layers))
        parts.layers = nn.ModuleList(layers)
        parts.norm = TorchRMSNorm(d, settings.rms_norm_eps)
        nn.init.normal_(parts.embed_tokens.weight, std=0.02)
        self.theta, self.head_dim = settings.rope_theta, d // settings.num_attention_heads

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens to scores of the next one."""
        parts = self.model
        h = parts.embed_tokens(x)
        cos, sin = self._waves(x.shape[1], h)
        for layer in parts.layers:
            h = layer(h, cos, sin)
        return nn.functional.linear(parts.norm(h), parts.embed_tokens.weight)

    def _waves(self, length: int, h: Tensor) -> tuple[Tensor, Tensor]:
        pace = torch.arange(0, self.head_dim, 2, device=h.device) / self.head_dim
        angle = torch.outer(torch.arange(length, device=h.device), self.theta**-pace)
        both = torch.cat((angle, angle), -1)
        return both.cos().to(h.dtype), both.sin().to(h.dtype)


# Networks -----------------------------------------------------------------------------------------

BERT_PLACES, BERT_EPS, BERT_DROPOUT = 512, 1e-12, 0.1
"""Of BERT-Base, as `simdp.probes.zoo.BERT_VOCABULARY`."""


def build(settings: Settings) -> nn.Module:
    """Build a model of `simdp.probes.networks`, with weights that depend only on torch's seed."""
    kinds: dict[type[Settings], Callable[..., nn.Module]] = {
        MLPSettings: TorchMLP,
        TransformerSettings: TorchTransformer,
        BertSettings: TorchBert,
        ResNetSettings: ResNet50,
        GPT2Settings: TorchGPT2,
        LlamaSettings: TorchLlama,
    }
    return kinds[type(settings)](settings)


def batch(settings: Settings, microbatch: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Draw one batch of inputs and targets for all steps."""
    inputs = settings.inputs
    shape = (microbatch, *inputs.shape)
    if inputs.num_tokens is None:
        x = torch.randn(shape, device=device)
    else:
        x = torch.randint(inputs.num_tokens, shape, device=device)
    targets = shape if inputs.per_token else shape[:1]
    return x, torch.randint(inputs.num_classes, targets, device=device)


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Return the cross entropy, the mean over samples or tokens, in 32 bit."""
    return nn.functional.cross_entropy(output.flatten(0, -2).float(), target.flatten())


class TorchMLP(nn.Module):
    """Linear maps with an activation between them."""

    def __init__(self, settings: MLPSettings) -> None:
        super().__init__()
        widths, bias = settings.widths, settings.bias
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in pairwise(widths))
        acts = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
        self.acts = nn.ModuleList(acts[settings.activation]() for _ in self.layers[1:])

    def forward(self, x: Tensor) -> Tensor:
        """Map features to classes."""
        for act, layer in zip(self.acts, self.layers, strict=False):
            x = act(layer(x))
        return self.layers[-1](x)


class Layers(nn.Module):
    """Consecutive encoder layers, as in nn.TransformerEncoder in training."""

    def __init__(self, layers: list[nn.Module], norm: nn.Module | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """Map hidden states to hidden states."""
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=mask is not None)
        return h if self.norm is None else self.norm(h)


class TorchTransformer(nn.Module):
    """A causal language model of nn.TransformerEncoder's layers."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        d, length, p = settings.d_model, settings.sequence_length, settings.dropout
        self.embedding = nn.Embedding(settings.vocab_size, d)
        self.dropout = nn.Dropout(p)
        layer = partial(
            nn.TransformerEncoderLayer,
            *(d, settings.nhead, settings.dim_feedforward, p, settings.activation),
            batch_first=True,
            norm_first=settings.norm_first,
        )
        layers = [layer() for _ in range(settings.num_layers)]
        self.encoder = Layers(layers, nn.LayerNorm(d) if settings.norm_first else None)
        self.fc = nn.Linear(d, settings.vocab_size)
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
    waves = torch.zeros(length, d)
    waves[:, 0::2] = torch.sin(place * pace)
    waves[:, 1::2] = torch.cos(place * pace)[:, : d // 2]
    return waves


class TorchBert(nn.Module):
    """BERT for classification, of nn.TransformerEncoder's layers."""

    def __init__(self, settings: BertSettings) -> None:
        super().__init__()
        d = settings.hidden_size
        self.embedding = nn.Embedding(BERT_VOCABULARY, d)
        self.position_embedding = nn.Embedding(BERT_PLACES, d)
        self.token_type_embedding = nn.Embedding(2, d)
        self.norm = nn.LayerNorm(d, eps=BERT_EPS)
        self.dropout = nn.Dropout(BERT_DROPOUT)
        layer = partial(
            nn.TransformerEncoderLayer,
            *(d, settings.num_attention_heads, settings.intermediate_size, BERT_DROPOUT, "gelu"),
            layer_norm_eps=BERT_EPS,
            batch_first=True,
        )
        self.encoder = Layers([layer() for _ in range(settings.num_hidden_layers)], None)
        self.pooler = nn.Linear(d, d)
        self.classifier = nn.Linear(d, settings.num_labels)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens to scores of the labels."""
        places = torch.arange(x.shape[1], device=x.device)
        h = self.embedding(x) + self.token_type_embedding(torch.zeros_like(x))
        h = self.dropout(self.norm(h + self.position_embedding(places)))
        first = self.encoder(h, None)[:, 0]
        return self.classifier(self.dropout(torch.tanh(self.pooler(first))))


class TorchBottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut (He et al., CVPR 2016)."""

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

    def __init__(self, settings: ResNetSettings) -> None:
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
                blocks.append(TorchBottleneck(fan_in, planes, 2 if stage and not number else 1))
                fan_in = 4 * planes
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(fan_in, settings.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to classes."""
        h = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            h = stage(h)
        return self.fc(self.avgpool(h).flatten(1))
