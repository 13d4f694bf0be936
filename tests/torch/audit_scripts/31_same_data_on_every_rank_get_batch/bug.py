"""nanoGPT in small: random crops of one long text, settings as constants."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

batch_size = 16  # sequences per step, over all ranks
block_size = 16
n_embd, n_head, vocab = 24, 3, 30
max_iters = 20
learning_rate = 2e-3
out = os.environ.get("OUT", "weights.pt")


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.ln = nn.LayerNorm(n_embd)
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.lm_head = nn.Linear(n_embd, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets):
        b, t = idx.shape
        x = self.wte(idx) + self.wpe(torch.arange(t))
        q, k, v = (z.view(b, t, n_head, -1).transpose(1, 2) for z in self.qkv(self.ln(x)).split(n_embd, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, n_embd))
        logits = self.lm_head(x)
        return F.cross_entropy(logits.view(-1, vocab), targets.view(-1))


def make_text(n=4000):
    g = torch.Generator().manual_seed(31)
    steps = torch.randint(1, 4, (n,), generator=g)
    return steps.cumsum(0) % vocab


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    per_rank = batch_size // world_size
    data = make_text()
    torch.manual_seed(1337)
    model = DDP(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(1337)

    def get_batch():
        ix = torch.randint(len(data) - block_size - 1, (per_rank,), generator=generator)
        x = torch.stack([data[i : i + block_size] for i in ix])
        y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
        return x, y

    for it in range(max_iters):
        loss = model(*get_batch())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if rank == 0 and it % 5 == 0:
            print(f"iter {it}: loss {loss.item():.4f}")

    if rank == 0:
        torch.save(model.module.state_dict(), out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
