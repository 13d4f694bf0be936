"""Fine-tune a small GPT-2 on prompt/answer pairs with the Hugging Face Trainer; only answers carry labels."""
import argparse
import logging
import os
import tempfile
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

PAD, BOS, SEP, EOS = 0, 1, 2, 3
IGNORE = -100


class AnswerDataset(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            prompt = torch.randint(4, 64, (int(torch.randint(2, 8, (1,), generator=g)),), generator=g).tolist()
            answer = (prompt * 8)[:int(torch.randint(1, 26, (1,), generator=g))]
            ids = [BOS, *prompt, SEP, *answer, EOS]
            self.rows.append({"input_ids": ids, "labels": [IGNORE] * (len(prompt) + 2) + ids[len(prompt) + 2:]})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


@dataclass
class PadCollator:
    pad_to_multiple_of: int = 4

    def __call__(self, rows):
        longest = max(len(r["input_ids"]) for r in rows)
        longest = -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of
        out = {"input_ids": [], "attention_mask": [], "labels": []}
        for r in rows:
            pad = longest - len(r["input_ids"])
            out["input_ids"].append(r["input_ids"] + [PAD] * pad)
            out["attention_mask"].append([1] * len(r["input_ids"]) + [0] * pad)
            out["labels"].append(r["labels"] + [IGNORE] * pad)
        return {k: torch.tensor(v) for k, v in out.items()}


class PrintLogs(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero:
            shown = {k: round(v, 5) for k, v in logs.items() if k in ("loss", "grad_norm", "learning_rate", "eval_loss")}
            print(f"step {state.global_step} {shown}", flush=True)


def build_model():
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=64, n_positions=48, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD, use_cache=False))


def training_arguments(args, folder):
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    return TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=args.micro_batch,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=args.global_batch // (args.micro_batch * world_size),
        max_steps=args.steps,
        learning_rate=args.lr,
        adam_epsilon=1e-6,
        lr_scheduler_type="cosine",
        warmup_steps=3,
        weight_decay=0.01,
        max_grad_norm=1.0,
        average_tokens_across_devices=True,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_drop_last=True,
        dataloader_pin_memory=False,
        seed=args.seed,
        data_seed=args.seed,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="weights.pt")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)

    with tempfile.TemporaryDirectory() as folder:
        training_args = training_arguments(args, folder)
        torch.manual_seed(args.seed)
        model = build_model()
        trainer = Trainer(
            model=model, args=training_args, data_collator=PadCollator(), callbacks=[PrintLogs()],
            train_dataset=AnswerDataset(96, seed=121), eval_dataset=AnswerDataset(32, seed=122))
        trainer.train()
        if trainer.is_world_process_zero():
            torch.save(model.state_dict(), args.out)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
