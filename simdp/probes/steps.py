"""One training step of a measured model, with marks between forward, backward and update."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from simdp.probes import networks
from simdp.probes.clock import Clock, clock
from simdp.probes.zoo import Settings

LEARNING_RATE = 1e-4
"""Small, so that weights hardly move: what is measured is time."""

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Times(NamedTuple):
    """Seconds of each step, and of its parts; four lists of one length."""

    step: list[float]
    forward: list[float]
    backward: list[float]
    update: list[float]


class Stepper:
    """Steps of one model on one fixed batch.

    Parameters
    ----------
    settings : dict
        Of the model, as in `simdp.probes.zoo`.
    microbatch : int
        Samples.
    precision : str
        A key of `simdp.probes.arguments.PRECISIONS`.
    optimizer : str
        A key of `OPTIMIZERS`.
    device : torch.device
        Where.

    Attributes
    ----------
    module : torch.nn.Module
        The model without a wrapper.
    """

    def __init__(
        self, settings: Settings, microbatch: int, precision: str, optimizer: str, device: Any
    ) -> None:
        torch.manual_seed(0)
        torch.set_flush_denormal(True)  # they cost a CPU a hundredfold, and come with random data
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
            precision == "tf32"
        )
        self.device, self.low = device, AUTOCAST.get(precision)
        self.module = networks.build(settings).to(device)
        self.batch = networks.batch(settings, microbatch, device)
        self.optimizer = OPTIMIZERS[optimizer](self.module.parameters(), lr=LEARNING_RATE)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    def autocast(self) -> AbstractContextManager[Any]:
        """What forward runs under."""
        if self.low is None:
            return nullcontext()
        found: AbstractContextManager[Any] = torch.autocast(self.device.type, self.low)
        return found

    def forward(self, model: Any) -> Any:
        """The loss of the batch, scaled where gradients are in float16."""
        x, y = self.batch
        with self.autocast():
            return self.scaler.scale(networks.loss_of(model(x), y))

    def step(self, model: Any, watch: Clock) -> None:
        """One step, with a mark after each of its three parts."""
        loss = self.forward(model)
        watch.mark()
        loss.backward()
        watch.mark()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        watch.mark()

    def run(
        self,
        model: Any,
        warm_up: int,
        steps: int,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Times:
        """Time some steps after some others.

        Parameters
        ----------
        model : torch.nn.Module
            ``module``, or what wraps it.
        warm_up, steps : int
            Steps that are not timed, and that are.
        around : callable
            Makes the context that each step runs in.
        """
        watch = clock(self.device)
        for _ in range(warm_up):
            with around():
                self.step(model, watch)
        watch.seconds()
        watch.mark()
        for _ in range(steps):
            with around():
                self.step(model, watch)
        at = watch.seconds()
        parts = [[b - a for a, b in zip(at[k::3], at[k + 1 :: 3], strict=False)] for k in range(3)]
        return Times([b - a for a, b in zip(at[::3], at[3::3], strict=False)], *parts)
