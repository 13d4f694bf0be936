"""GPT-2 on tokens made on the spot, after minGPT, on one device or under DDP."""

import argparse
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("told")
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--tokens", type=int, default=1024)
parser.add_argument("--vocabulary", type=int, default=50257)
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--flash", action="store_true")
parser.add_argument("--amp", action="store_true")
parser.add_argument("--clip", type=float)
args = parser.parse_args()


class Attention(nn.Module):
    def __init__(self, width, heads, tokens, dropout):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.attn_dropout, self.resid_dropout = nn.Dropout(dropout), nn.Dropout(dropout)
        if not args.flash:
            later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
            self.register_buffer("later", later.view(1, 1, tokens, tokens), persistent=False)
        self.heads = heads

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        if args.flash:
            p = self.attn_dropout.p if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.later[:, :, :T, :T], float("-inf"))
            y = self.attn_dropout(F.softmax(att, dim=-1)) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Block(nn.Module):
    def __init__(self, width, heads, tokens, dropout):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, tokens, dropout)
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.act, self.dropout = nn.GELU(approximate="tanh"), nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.dropout(self.c_proj(self.act(self.c_fc(self.ln_2(x)))))


class GPT(nn.Module):
    def __init__(self, vocabulary, layers, width, heads, tokens, dropout):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList([Block(width, heads, tokens, dropout) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(pos))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


dist.init_process_group("nccl")
device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
torch.cuda.set_device(device)
sizes = args.vocabulary, args.layers, args.width, args.heads, args.tokens, args.dropout
model = GPT(*sizes).to(device)
if dist.get_world_size() > 1:
    model = DistributedDataParallel(model, device_ids=[device])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
x = torch.randint(args.vocabulary, (args.batch, args.tokens + 1), device=device)
for _ in range(3):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    with torch.autocast("cuda", torch.bfloat16, enabled=args.amp):
        loss = model(x[:, :-1], x[:, 1:].contiguous())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if args.clip:
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    end.record()
torch.cuda.synchronize()
if dist.get_rank() == 0:
    with open(args.told, "w") as file:
        file.write(str(begin.elapsed_time(end) / 1e3))
dist.destroy_process_group()
