"""FSDP2 on a small llama: fully_shard block by block, AdamW, clipping, a full state at the end."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotary(length, depth, device):
    freqs = 1.0 / (10000.0 ** (torch.arange(0, depth, 2, device=device).float() / depth))
    angles = torch.outer(torch.arange(length, device=device).float(), freqs)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv, self.depth = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.depth, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.depth, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        q = self.wq(x).view(B, T, self.n_heads, self.depth).transpose(1, 2)
        k = self.wk(x).view(B, T, self.n_kv, self.depth).transpose(1, 2)
        v = self.wv(x).view(B, T, self.n_kv, self.depth).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k = k.repeat_interleave(self.n_heads // self.n_kv, dim=1)
        v = v.repeat_interleave(self.n_heads // self.n_kv, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(B, T, -1))


class TransformerBlock(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, hidden):
        super().__init__()
        self.attention = Attention(dim, n_heads, n_kv_heads)
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.attention_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)

    def forward(self, x, cos, sin):
        h = x + self.attention(self.attention_norm(x), cos, sin)
        y = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    def __init__(self, vocab=64, dim=32, n_layers=3, n_heads=4, n_kv_heads=2, hidden=56):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            TransformerBlock(dim, n_heads, n_kv_heads, hidden) for _ in range(n_layers)
        )
        self.norm, self.output = RMSNorm(dim), nn.Linear(dim, vocab, bias=False)
        self.depth = dim // n_heads

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        cos, sin = rotary(tokens.shape[1], self.depth, tokens.device)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.output(self.norm(x))


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    if device_type == "cuda":
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    mesh = init_device_mesh(device_type, (dist.get_world_size(),), mesh_dim_names=("dp",))

    torch.manual_seed(42)
    model = Llama().to(device_type)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)

    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(4):
        tokens = torch.randint(0, 64, (2, 17), generator=generator).to(device_type)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    full = {name: p.full_tensor().detach().cpu() for name, p in model.named_parameters()}
    torch.save(losses, f"losses{dist.get_rank()}.pt")
    if dist.get_rank() == 0:
        torch.save(full, "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
