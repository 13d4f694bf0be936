"""A llama after transformers', sharded block by block by FSDP2."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("told")
parser.add_argument("--layers", type=int, default=16)
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--hidden", type=int, default=8192)
parser.add_argument("--heads", type=int, default=32)
parser.add_argument("--kv-heads", type=int, default=8)
parser.add_argument("--vocabulary", type=int, default=128256)
parser.add_argument("--tokens", type=int, default=2048)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--mixed", action="store_true")
parser.add_argument("--fused", action="store_true", help="nn.RMSNorm")
args = parser.parse_args()


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def norm(width):
    return nn.RMSNorm(width, eps=1e-5) if args.fused else RMSNorm(width)


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.depth = width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.depth, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.depth, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin):
        B, T, C = x.shape
        q, k, v = (
            proj(x).view(B, T, -1, self.depth).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        shared = args.heads != args.kv_heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, C))


class Layer(nn.Module):
    def __init__(self, width, hidden, heads, kv_heads):
        super().__init__()
        self.self_attn = Attention(width, heads, kv_heads)
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)
        self.input_layernorm, self.post_attention_layernorm = norm(width), norm(width)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = args.width, args.hidden, args.heads, args.kv_heads
        self.embed_tokens = nn.Embedding(args.vocabulary, args.width)
        self.layers = nn.ModuleList([Layer(*sizes) for _ in range(args.layers)])
        self.norm = norm(args.width)
        self.lm_head = nn.Linear(args.width, args.vocabulary, bias=False)
        depth = args.width // args.heads
        freqs = 1.0 / (500000.0 ** (torch.arange(0, depth, 2).float() / depth))
        angles = torch.outer(torch.arange(args.tokens).float(), freqs)
        angles = torch.cat((angles, angles), dim=-1)
        dtype = torch.bfloat16 if args.mixed else torch.float32
        self.register_buffer("cos", angles.cos().to(dtype), persistent=False)
        self.register_buffer("sin", angles.sin().to(dtype), persistent=False)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.lm_head(self.norm(x))


dist.init_process_group("nccl")
device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
torch.cuda.set_device(device)
model = Llama().to(device)
if dist.get_world_size() > 1:
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = {"mp_policy": low} if args.mixed else {}
    for layer in model.layers:
        fully_shard(layer, **policy)
    fully_shard(model, **policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
tokens = torch.randint(args.vocabulary, (args.batch, args.tokens + 1), device=device)
for _ in range(3):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    end.record()
torch.cuda.synchronize()
if dist.get_rank() == 0:
    with open(args.told, "w") as file:
        file.write(str(begin.elapsed_time(end) / 1e3))
dist.destroy_process_group()
