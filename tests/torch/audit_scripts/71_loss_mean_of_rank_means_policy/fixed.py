"""GRPO on a toy task: sample a group of completions per prompt, reward them, and improve the policy with the clipped objective."""
import argparse
import copy
import logging
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("grpo")
VOCAB, EOS, BOS = 24, 0, 1


@dataclass
class GRPOConfig:
    global_batch: int = 16
    steps: int = 20
    seed: int = 0
    out: str = "weights.pt"
    lr: float = 3e-3
    group_size: int = 4
    max_completion: int = 14
    prompt_len: int = 4
    num_iterations: int = 2
    clip_eps: float = 0.2
    beta: float = 0.02
    max_grad_norm: float = 1.0
    log_every: int = 4


@dataclass
class Rollout:
    ids: torch.Tensor
    mask: torch.Tensor
    rewards: torch.Tensor
    advantages: torch.Tensor
    old_logps: torch.Tensor
    ref_logps: torch.Tensor
    stats: dict = field(default_factory=dict)


class PromptDataset(Dataset):
    def __init__(self, n, length):
        g = torch.Generator().manual_seed(77)
        self.prompts = torch.randint(2, VOCAB, (n, length), generator=g)

    def __len__(self):
        return len(self.prompts)

    def __getitem__(self, i):
        return {"prompt": self.prompts[i], "index": i}


class PolicyModel(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        hidden, _ = self.rnn(self.embed(ids))
        return self.lm_head(self.norm(hidden))


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()


def completion_logps(model, ids, prompt_len):
    logits = model(ids[:, :-1])[:, prompt_len - 1:]
    return torch.gather(F.log_softmax(logits, -1), 2, ids[:, prompt_len:].unsqueeze(-1)).squeeze(-1)


def reward_fn(prompts, completions, mask):
    """Tokens with the parity of the prompt's first token are good; every token has a small price."""
    wanted = (completions % 2 == prompts[:, :1] % 2).float() * mask
    return wanted.sum(1) / mask.sum(1) - 0.02 * mask.sum(1)


class GRPOTrainer:
    def __init__(self, cfg, model, dataset):
        self.cfg = cfg
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.sampler = DistributedSampler(dataset, shuffle=True, seed=cfg.seed)
        self.loader = DataLoader(dataset, batch_size=cfg.global_batch // self.world_size, sampler=self.sampler, drop_last=True)
        self.reference = copy.deepcopy(model).eval().requires_grad_(False)
        self.model = DDP(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.0, eps=1e-6)
        self.global_step = 0

    @torch.no_grad()
    def generate(self, prompts, indices):
        """Gumbel-max sampling; the noise belongs to (seed, step, prompt), so a prompt's completions do not depend on its place."""
        cfg, noise = self.cfg, []
        for index in indices.tolist():
            g = torch.Generator().manual_seed(cfg.seed * 1_000_003 + self.global_step * 4_099 + index)
            uniform = torch.rand(cfg.group_size, cfg.max_completion, VOCAB, generator=g).clamp_(1e-6, 1 - 1e-6)
            noise.append(-torch.log(-torch.log(uniform)))
        noise = torch.cat(noise)
        ids = prompts.repeat_interleave(cfg.group_size, 0)
        done = torch.zeros(len(ids), dtype=torch.bool)
        masks = []
        for t in range(cfg.max_completion):
            logits = self.model.module(ids)[:, -1]
            token = (logits + noise[:, t]).argmax(-1).masked_fill(done, EOS)
            masks.append(~done)
            done = done | (token == EOS)
            ids = torch.cat([ids, token[:, None]], 1)
        return ids, torch.stack(masks, 1).float()

    @torch.no_grad()
    def make_rollout(self, batch):
        cfg = self.cfg
        ids, mask = self.generate(batch["prompt"], batch["index"])
        rewards = reward_fn(ids[:, :cfg.prompt_len], ids[:, cfg.prompt_len:], mask)
        grouped = rewards.view(-1, cfg.group_size)
        advantages = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1)
        old = completion_logps(self.model.module, ids, cfg.prompt_len)
        ref = completion_logps(self.reference, ids, cfg.prompt_len)
        return Rollout(ids, mask, rewards, advantages, old, ref)

    def compute_loss(self, rollout):
        cfg = self.cfg
        logps = completion_logps(self.model, rollout.ids, cfg.prompt_len)
        ratio = torch.exp(logps - rollout.old_logps)
        adv = rollout.advantages[:, None]
        per_token = -torch.min(ratio * adv, ratio.clamp(1 - cfg.clip_eps, 1 + cfg.clip_eps) * adv)
        delta = rollout.ref_logps - logps
        per_token_kl = torch.exp(delta) - delta - 1
        tokens = rollout.mask.sum()
        dist.all_reduce(tokens)
        loss = ((per_token + cfg.beta * per_token_kl) * rollout.mask).sum() * self.world_size / tokens
        with torch.no_grad():
            rollout.stats["kl"] = masked_mean(per_token_kl, rollout.mask)
            rollout.stats["clip_frac"] = masked_mean(((ratio - 1).abs() > cfg.clip_eps).float(), rollout.mask)
        return loss

    def log(self, rollout, loss):
        values = torch.stack([loss.detach(), rollout.rewards.mean(), rollout.mask.sum(1).mean(), rollout.stats["kl"], rollout.stats["clip_frac"]])
        dist.all_reduce(values)
        if self.rank == 0:
            loss, reward, length, kl, clip = (values / self.world_size).tolist()
            log.info("step %d loss %.4f reward %.3f length %.2f kl %.4f clip_frac %.3f", self.global_step, loss, reward, length, kl, clip)

    def train(self):
        cfg, epoch = self.cfg, 0
        while self.global_step < cfg.steps:
            self.sampler.set_epoch(epoch)
            for batch in self.loader:
                rollout = self.make_rollout(batch)
                for _ in range(cfg.num_iterations):
                    loss = self.compute_loss(rollout)
                    self.optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(self.model.parameters(), cfg.max_grad_norm)
                    self.optimizer.step()
                    self.global_step += 1
                    if self.global_step % cfg.log_every == 0:
                        self.log(rollout, loss)
                if self.global_step >= cfg.steps:
                    break
            epoch += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="weights.pt")
    cfg = GRPOConfig(**vars(parser.parse_args()))
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    dist.init_process_group("gloo")
    torch.manual_seed(cfg.seed)
    trainer = GRPOTrainer(cfg, PolicyModel(), PromptDataset(96, cfg.prompt_len))
    trainer.train()
    if trainer.rank == 0:
        os.makedirs(os.path.dirname(os.path.abspath(cfg.out)), exist_ok=True)
        torch.save(trainer.model.module.state_dict(), cfg.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
