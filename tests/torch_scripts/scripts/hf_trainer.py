"""Hugging Face's Trainer on a small GPT-2 made on the spot; torchrun makes it DDP."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Texts(Dataset):
    def __init__(self, length=48, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, 50, (length, 12), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=50,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    on_gpu = torch.cuda.is_available()
    args = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        learning_rate=1e-3,
        lr_scheduler_type="linear",
        warmup_steps=1,
        logging_steps=2,
        save_strategy="no",
        report_to=[],
        seed=17,
        disable_tqdm=True,
        use_cpu=not on_gpu,
        ddp_backend="nccl" if on_gpu else "gloo",
        dataloader_pin_memory=on_gpu,
    )
    trainer = Trainer(model=model, args=args, train_dataset=Texts())
    trainer.train()
    if trainer.is_world_process_zero():
        torch.save({k: v.cpu() for k, v in model.state_dict().items()}, "weights.pt")


if __name__ == "__main__":
    main()
