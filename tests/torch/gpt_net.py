"""A GPT as minGPT and nanoGPT write it: pre-LN blocks, one map for all three of attention."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, n_embd, n_head, dropout):
        super().__init__()
        self.ln_1, self.c_attn = nn.LayerNorm(n_embd), nn.Linear(n_embd, 3 * n_embd)
        self.c_proj, self.ln_2 = nn.Linear(n_embd, n_embd), nn.LayerNorm(n_embd)
        self.up, self.down = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)
        self.drop, self.n_head = nn.Dropout(dropout), n_head

    def forward(self, x):
        batch, length, width = x.shape
        heads = (
            part.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(width, dim=2)
        )
        y = functional.scaled_dot_product_attention(*heads, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        x = x + self.drop(self.c_proj(y))
        return x + self.drop(self.down(functional.gelu(self.up(self.ln_2(x)), approximate="tanh")))


class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, dropout=0.1):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(Block(n_embd, n_head, dropout) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.wte(tokens) + self.wpe(places))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))
