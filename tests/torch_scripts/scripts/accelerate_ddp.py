"""A plain loop on Accelerate: prepare(), accumulate(), gather_for_metrics()."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    set_seed(23)
    x = torch.randn(72, 6)
    y = (x.sum(1) > 0).long()
    train = DataLoader(TensorDataset(x[:56], y[:56]), batch_size=4, shuffle=True)
    test = DataLoader(TensorDataset(x[56:], y[56:]), batch_size=4)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
    model, optimizer, train, test, scheduler = accelerator.prepare(
        model, optimizer, train, test, scheduler
    )
    for _ in range(2):
        model.train()
        for inputs, targets in train:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        correct = []
        for inputs, targets in test:
            with torch.no_grad():
                found = model(inputs).argmax(-1)
            found, targets = accelerator.gather_for_metrics((found, targets))
            correct.append((found == targets).float().cpu())
        accelerator.print(f"accuracy {torch.cat(correct).mean():.3f}")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        net = accelerator.unwrap_model(model)
        state = {k: v.cpu() for k, v in net.state_dict().items()}
        torch.save({"model": state, "correct": torch.cat(correct)}, "weights.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
