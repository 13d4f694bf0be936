"""How fast a ResNet's forward and backward are, beside the same model of torch.nn.

    python -m benchmarks.resnet

ResNet-20 for images of 32 x 32 pixels (He et al. 2016, section 4.2; 1x1 convolutions where the
shape changes). Both run on one thread, in float32, in turns; the median of several rounds counts.
torch runs with its default order of memory, and with channels_last, which is faster on CPUs.
torch is needed for this script alone: ``pip install torch --index-url
https://download.pytorch.org/whl/cpu``; without it the figures of simdp stand alone.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.beside_torch import complain, simdp_step
from benchmarks.table import show
from simdp.workload.models.sequential import Sequential
from simdp.workload.weights import drawn

TARGET = 0.5
ROUNDS = 15
BATCHES = (16, 32)
IMAGE = (3, 32, 32)
CLASSES = 10
STAGES = ((16, 1), (32, 2), (64, 2))
"""Channels, and the stride of the first block."""
DEPTH = 3

Step = Callable[[], Any]


def conv(before: int, after: int, kernel: int, stride: int = 1) -> dict[str, Any]:
    return {
        "kind": "conv2d",
        "in_channels": before,
        "out_channels": after,
        "kernel_size": kernel,
        "stride": stride,
        "padding": kernel // 2,
        "bias": False,
    }


def norm(channels: int) -> dict[str, Any]:
    return {"kind": "batch_norm2d", "num_features": channels}


def block(before: int, after: int, stride: int) -> dict[str, Any]:
    main = [conv(before, after, 3, stride), norm(after), {"kind": "relu"}]
    main += [conv(after, after, 3), norm(after)]
    around = [] if before == after else [conv(before, after, 1, stride), norm(after)]
    return {"kind": "residual", "layers": main, "shortcut": around}


def layers() -> list[dict[str, Any]]:
    channels = STAGES[0][0]
    found = [conv(IMAGE[0], channels, 3), norm(channels), {"kind": "relu"}]
    for width, stride in STAGES:
        for number in range(DEPTH):
            found.append(block(channels, width, 1 if number else stride))
            channels = width
    found += [{"kind": "adaptive_avg_pool2d", "output_size": 1}, {"kind": "flatten"}]
    return [*found, {"kind": "linear", "in_features": channels, "out_features": CLASSES}]


def model() -> Sequential:
    return Sequential.model_validate({"layers": layers(), "input_shape": list(IMAGE)})


def torch_step(x: Any, slope: Any, order: str) -> Step:
    """The same in torch, with the same weights."""
    import torch
    from torch import nn

    torch.set_num_threads(1)

    class Residual(nn.Sequential):
        def __init__(self, main: list[nn.Module], around: list[nn.Module]) -> None:
            super().__init__(*main)
            self.length = len(main)
            self.shortcut = nn.Sequential(*around)

        def forward(self, h: Any) -> Any:
            y = h
            for layer in list(self)[: self.length]:
                y = layer(y)
            return nn.functional.relu(y + self.shortcut(h))

    kinds: dict[str, Callable[..., nn.Module]] = {
        "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d,
        "batch_norm2d": nn.BatchNorm2d,
        "conv2d": nn.Conv2d,
        "flatten": nn.Flatten,
        "linear": nn.Linear,
        "relu": nn.ReLU,
        "residual": lambda layers, shortcut: Residual(made(layers), made(shortcut)),
    }

    def made(listed: list[dict[str, Any]]) -> list[nn.Module]:
        return [
            kinds[one["kind"]](**{k: v for k, v in one.items() if k != "kind"}) for one in listed
        ]

    net = nn.Sequential(*made(layers()))
    ours = model()
    weights = drawn(ours, ours.graph, "float32", 0, 0)
    net.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
    memory = getattr(torch, order)
    net = net.to(memory_format=memory)
    images = torch.from_numpy(x).to(memory_format=memory)
    gradient = torch.from_numpy(slope)

    def step() -> Any:
        net.zero_grad(set_to_none=True)
        y = net(images)
        y.backward(gradient)
        return y.detach().numpy()

    return step


def medians(steps: dict[str, Step]) -> dict[str, float]:
    """Time of each, in turns [s]."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            begin = perf_counter()
            step()
            times[name].append(perf_counter() - begin)
    return {name: median(found) for name, found in times.items()}


def row(batch: int, with_torch: bool) -> tuple[str, str, str, bool]:
    random = np.random.default_rng(0)
    x = random.standard_normal((batch, *IMAGE)).astype("float32")
    slope = random.standard_normal((batch, CLASSES)).astype("float32")
    steps = {"simdp": simdp_step(model(), x, lambda y: (y, slope))}
    if with_torch:
        steps["torch"] = torch_step(x, slope, "contiguous_format")
        steps["torch, channels_last"] = torch_step(x, slope, "channels_last")
        wanted = steps["torch"]()
        np.testing.assert_allclose(steps["simdp"](), wanted, rtol=1e-3, atol=1e-4)
    found = medians(steps)
    ours = found.pop("simdp")
    figures = [f"simdp {1e3 * ours:.0f} ms"]
    figures += [
        f"{name} {1e3 * theirs:.0f} ms: {theirs / ours:.2f} of its speed"
        for name, theirs in found.items()
    ]
    reached = not with_torch or found["torch"] >= TARGET * ours
    return f"{batch} images", "\n".join(figures), f"{TARGET}" if with_torch else "-", reached


def main() -> int:
    with_torch, version = True, "torch is not installed"
    try:
        import torch
    except ImportError:
        with_torch = False
        complain("resnet")
    else:
        version = f"torch {torch.__version__}"
    rows = [row(batch, with_torch) for batch in BATCHES]
    return show(f"ResNet-20, forward and backward, one thread, {version}", rows)


if __name__ == "__main__":
    raise SystemExit(main())
