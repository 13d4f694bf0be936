"""GPT-2 and Llama in torch, with the parameters of simdp's: same names, shapes and order."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from simdp.probes.zoo import Settings

Tensor = Any


def _heads(x: Tensor, count: int) -> Tensor:
    """Cut the last axis into heads: `(batch, tokens, d)` to `(batch, count, tokens, d / count)`."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class Turned(nn.Module):
    """A linear map whose weight is `(in, out)`, as that of GPT-2's own code."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_in, fan_out) * 0.02)
        self.bias = nn.Parameter(torch.zeros(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        """Map features to features."""
        return nn.functional.linear(x, self.weight.t(), self.bias)


class GPT2Attention(nn.Module):
    """Causal attention with one map for queries, keys and values."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        d, self.heads, self.p = settings["n_embd"], settings["n_head"], settings["attn_pdrop"]
        self.c_attn, self.c_proj = Turned(d, 3 * d), Turned(d, d)
        self.dropout = nn.Dropout(settings["resid_pdrop"])

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states to hidden states."""
        q, k, v = (_heads(part, self.heads) for part in self.c_attn(x).chunk(3, -1))
        p = self.p if self.training else 0.0
        h = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.dropout(self.c_proj(h.transpose(1, 2).flatten(2)))


class GPT2MLP(nn.Module):
    """Two maps with a GELU between them, by tanh."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        d = settings["n_embd"]
        self.c_fc, self.c_proj = Turned(d, 4 * d), Turned(4 * d, d)
        self.act, self.dropout = nn.GELU(approximate="tanh"), nn.Dropout(settings["resid_pdrop"])

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states to hidden states."""
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class GPT2Block(nn.Module):
    """Attention and two maps, each behind a norm and beside a shortcut."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        d, eps = settings["n_embd"], settings["layer_norm_epsilon"]
        self.ln_1, self.attn = nn.LayerNorm(d, eps), GPT2Attention(settings)
        self.ln_2, self.mlp = nn.LayerNorm(d, eps), GPT2MLP(settings)

    def forward(self, h: Tensor) -> Tensor:
        """Map hidden states to hidden states."""
        h = h + self.attn(self.ln_1(h))
        return h + self.mlp(self.ln_2(h))


class GPT2(nn.Module):
    """GPT-2 with the names of transformers' GPT2LMHeadModel (Radford et al., OpenAI 2019)."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        d = settings["n_embd"]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(settings["vocab_size"], d),
                "wpe": nn.Embedding(settings["n_positions"], d),
                "drop": nn.Dropout(settings["embd_pdrop"]),
                "h": nn.ModuleList(GPT2Block(settings) for _ in range(settings["n_layer"])),
                "ln_f": nn.LayerNorm(d, settings["layer_norm_epsilon"]),
            }
        )
        for name in ("wte", "wpe"):
            nn.init.normal_(self.transformer[name].weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens to scores of the next one."""
        parts = self.transformer
        places = torch.arange(x.shape[1], device=x.device)
        h = parts["drop"](parts["wte"](x) + parts["wpe"](places))
        for block in parts["h"]:
            h = block(h)
        return nn.functional.linear(parts["ln_f"](h), parts["wte"].weight)


class RMSNorm(nn.Module):
    """By the root of the mean of the squares, in 32 bit, as transformers computes it."""

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
    """Causal attention whose keys and values serve several queries each."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        d, self.heads = settings["hidden_size"], settings["num_attention_heads"]
        self.shared = settings["num_key_value_heads"]
        narrow = d // self.heads * self.shared
        self.q_proj, self.k_proj = nn.Linear(d, d, bias=False), nn.Linear(d, narrow, bias=False)
        self.v_proj, self.o_proj = nn.Linear(d, narrow, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map hidden states to hidden states."""
        q, k = _heads(self.q_proj(x), self.heads), _heads(self.k_proj(x), self.shared)
        q, k = _rotated(q, cos, sin).to(q.dtype), _rotated(k, cos, sin).to(k.dtype)
        v = _heads(self.v_proj(x), self.shared)
        each = self.heads // self.shared
        k, v = (part.repeat_interleave(each, 1) if each > 1 else part for part in (k, v))
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(h.transpose(1, 2).flatten(2))


class LlamaMLP(nn.Module):
    """SwiGLU (Shazeer, arXiv 2002.05202)."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        d, wide = settings["hidden_size"], settings["intermediate_size"]
        self.gate_proj, self.up_proj = (nn.Linear(d, wide, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(wide, d, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states to hidden states."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    """Attention and SwiGLU, each behind a norm and beside a shortcut."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        d, eps = settings["hidden_size"], settings["rms_norm_eps"]
        self.self_attn, self.mlp = LlamaAttention(settings), LlamaMLP(settings)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(d, eps), RMSNorm(d, eps)

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map hidden states to hidden states."""
        h = h + self.self_attn(self.input_layernorm(h), cos, sin)
        return h + self.mlp(self.post_attention_layernorm(h))


class Llama(nn.Module):
    """Llama with tied embeddings and the names of transformers' LlamaForCausalLM."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        d = settings["hidden_size"]
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(settings["vocab_size"], d),
                "layers": nn.ModuleList(
                    LlamaLayer(settings) for _ in range(settings["num_hidden_layers"])
                ),
                "norm": RMSNorm(d, settings["rms_norm_eps"]),
            }
        )
        nn.init.normal_(self.model["embed_tokens"].weight, std=0.02)
        self.theta, self.head_dim = settings["rope_theta"], d // settings["num_attention_heads"]

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens to scores of the next one."""
        parts = self.model
        h = parts["embed_tokens"](x)
        cos, sin = self._waves(x.shape[1], h)
        for layer in parts["layers"]:
            h = layer(h, cos, sin)
        return nn.functional.linear(parts["norm"](h), parts["embed_tokens"].weight)

    def _waves(self, length: int, h: Tensor) -> tuple[Tensor, Tensor]:
        pace = torch.arange(0, self.head_dim, 2, device=h.device) / self.head_dim
        angle = torch.outer(torch.arange(length, device=h.device), self.theta**-pace)
        both = torch.cat((angle, angle), -1)
        return both.cos().to(h.dtype), both.sin().to(h.dtype)
