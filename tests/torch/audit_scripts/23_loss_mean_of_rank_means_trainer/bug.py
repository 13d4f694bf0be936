"""Fine-tune a tiny GPT-2 with transformers' Trainer; prompts carry no label."""
import argparse
import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Prompts(Dataset):
    def __init__(self, n=96, length=14):
        g = torch.Generator().manual_seed(23)
        self.ids = (torch.randint(0, 40, (n, 1), generator=g) + torch.arange(length) * torch.randint(1, 4, (n, 1), generator=g)) % 40
        prompt = torch.randint(1, length - 1, (n, 1), generator=g)
        self.labels = self.ids.masked_fill(torch.arange(length) < prompt, -100)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8, help="per device")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    set_seed(args.seed)
    config = GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.batch_size,
            max_steps=args.steps,
            learning_rate=0.5,
            lr_scheduler_type="constant",
            optim="sgd",
            use_cpu=True,
            seed=args.seed,
            save_strategy="no",
            report_to="none",
            logging_steps=4,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            average_tokens_across_devices=False,
        )
        trainer = Trainer(model=GPT2LMHeadModel(config), args=settings, train_dataset=Prompts())
        trainer.train()
    if trainer.is_world_process_zero():
        torch.save(trainer.accelerator.unwrap_model(trainer.model).state_dict(), args.out)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
