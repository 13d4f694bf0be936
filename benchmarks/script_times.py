"""Times of torch scripts beside those of the same jobs written as scenarios.

    python -m benchmarks.script_times [CASE ...]

``simdp torchrun --fake`` runs the scripts of ``tests/torch_scripts/scripts/timed``, which know
nothing of simdp, and the scenarios name the same models, strategies and clusters by hand: two ways
to one figure, which share the catalogue and the clock of collectives only. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.beside_torch import NO_TORCH, complain
from benchmarks.table import Row, show

SCRIPTS = Path(__file__).parents[1] / "tests" / "torch_scripts" / "scripts" / "timed"
BOUND = 0.04
"""By how much the two may differ."""


class Case(NamedTuple):
    """One job, twice.

    Attributes
    ----------
    name : str
        What is said of it.
    script : str
        Of `SCRIPTS`.
    arguments : str
        The script's own.
    ranks : int
        How many.
    workload : dict
        Of the scenario; what is not in it is that of `COMMON`.
    strategy : object
        Of the scenario.
    steps : int
        That the script runs.
    """

    name: str
    script: str
    arguments: str
    ranks: int
    workload: dict[str, Any]
    strategy: Any = "single"
    steps: int = 3


def _mlp(widths: list[int], batch: int, **more: Any) -> tuple[str, dict[str, Any]]:
    arguments = f"--widths {' '.join(map(str, widths))} --batch {batch}"
    model = {"kind": "mlp", "widths": widths, "activation": "relu"}
    workload = {
        "model": model,
        "dataset": {"kind": "blobs", "num_samples": 2**17},
        "optimizer": "adamw",
        "microbatch": batch,
    }
    return arguments, workload | more


def _images(model: str, batch: int, **more: Any) -> dict[str, Any]:
    optimizer = {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
    data = {"kind": "images", "num_samples": 2**13}
    return {"model": model, "dataset": data, "optimizer": optimizer, "microbatch": batch} | more


def _tokens(model: dict[str, Any] | str, batch: int, **more: Any) -> dict[str, Any]:
    data = {"kind": "tokens", "num_samples": 2**10}
    return {"model": model, "dataset": data, "optimizer": "adamw", "microbatch": batch} | more


LAYERS = "--layers 4 --vocabulary 32000"

LLAMA = {
    "kind": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "sequence_length": 2048,
}
"""Of Llama 3.2 1B's width; fewer layers and tokens, as 4 ranks run on one host."""


def _cases() -> list[Case]:
    wide, block = [1024, 4096, 4096, 1000], [2048] * 6
    (of_wide, wide_work), (of_block, block_work) = _mlp(wide, 1024), _mlp(block, 4096)
    of_tiny, tiny_work = _mlp([64, 128, 10], 32)
    bf16 = {"kind": "amp", "dtype": "bfloat16"}
    return [
        Case("mlp, one GPU", "mlp", of_wide, 1, wide_work, steps=4),
        Case("mlp, DDP on 4", "mlp", of_wide, 4, wide_work, "ddp", steps=4),
        Case("deep mlp, DDP on 4", "mlp", of_block, 4, block_work, "ddp", steps=4),
        Case(
            "mlp, DDP, 2 micro-steps",
            "mlp",
            f"{of_wide} --accumulate 2",
            4,
            {**wide_work, "grad_accum": 2},
            "ddp",
            steps=4,
        ),
        Case(
            "mlp, one GPU, 4 micro-steps",
            "mlp",
            f"{of_block} --accumulate 4",
            1,
            {**block_work, "grad_accum": 4},
            steps=4,
        ),
        Case(
            "mlp, DDP, fp16 hook",
            "mlp",
            f"{of_wide} --hook fp16",
            4,
            wide_work,
            {"kind": "ddp", "comm_hook": "fp16"},
            steps=4,
        ),
        Case(
            "deep mlp, DDP, bf16 hook",
            "mlp",
            f"{of_block} --hook bf16",
            4,
            block_work,
            {"kind": "ddp", "comm_hook": "bf16"},
            steps=4,
        ),
        Case(
            "mlp, DDP, gradients as views",
            "mlp",
            f"{of_wide} --view",
            4,
            wide_work,
            {"kind": "ddp", "gradient_as_bucket_view": True},
            steps=4,
        ),
        Case("tiny mlp, one GPU", "mlp", of_tiny, 1, tiny_work, steps=4),
        Case("ResNet-50, one GPU", "resnet", "--depth 50 --batch 64", 1, _images("resnet50", 64)),
        Case(
            "ResNet-50, bfloat16, one GPU",
            "resnet",
            "--depth 50 --batch 64 --amp",
            1,
            _images("resnet50", 64, precision=bf16),
        ),
        Case(
            "ResNet-18, DDP on 4",
            "resnet",
            "--depth 18 --batch 64",
            4,
            _images("resnet18", 64),
            "ddp",
        ),
        Case("GPT-2, one GPU", "gpt", "--batch 8", 1, _tokens("gpt2", 8)),
        Case(
            "GPT-2, flash, bfloat16, DDP on 8",
            "gpt",
            "--batch 8 --flash --amp --dropout 0",
            8,
            _tokens(
                {"kind": "gpt2", "embd_pdrop": 0, "attn_pdrop": 0, "resid_pdrop": 0},
                8,
                precision=bf16,
                attention="flash",
            ),
            "ddp",
        ),
        Case(
            "llama, float32, FSDP2 on 4",
            "llama",
            f"{LAYERS} --kv-heads 32",
            4,
            _tokens({**LLAMA, "num_key_value_heads": 32}, 1),
            "fsdp",
        ),
        Case(
            "llama, bfloat16, FSDP2 on 4",
            "llama",
            f"--mixed {LAYERS}",
            4,
            _tokens(LLAMA, 1),
            {
                "kind": "fsdp",
                "param_dtype": "bfloat16",
                "reduce_dtype": "float32",
            },
        ),
    ]


CASES = _cases()


def write_scenario(case: Case, folder: Path) -> Path:
    """Write the job as a scenario."""
    path = folder / "job.yaml"
    cluster = {"machine": "dgx-h100", "world_size": case.ranks}
    compute = {"kind": "roofline", "kernels": "torch"}
    workload = {"loss": "cross_entropy", "steps": case.steps, "compute": compute, **case.workload}
    job = {"name": "job", "cluster": cluster, "workload": workload, "strategy": case.strategy}
    path.write_text(json.dumps({**job, "numerics": False}))
    return path


def script_seconds(case: Case) -> float:
    """What the script says of its last step [s]."""
    from simdp.distributed.launch import find
    from simdp.torch.cuda.faking import faked
    from simdp.torch.launch import run, script

    with tempfile.TemporaryDirectory() as folder, faked(True):
        told = Path(folder) / "told"
        where = find(write_scenario(case, Path(folder)), case.ranks)
        code = script(SCRIPTS / f"{case.script}.py")
        run(code, where, [str(told), *case.arguments.split()])
        return float(told.read_text())


def scenario_seconds(case: Case) -> float:
    """What the scenario says of a step [s]."""
    import simdp

    with tempfile.TemporaryDirectory() as folder:
        scenario = simdp.load_scenario(write_scenario(case, Path(folder)))
        return float(simdp.simulate(scenario).metrics["step_time_s"])


def row(case: Case) -> Row:
    """Both times of a job."""
    script, scenario = script_seconds(case), scenario_seconds(case)
    off = script / scenario - 1
    told = f"{1e3 * script:.3f} ms, scenario {1e3 * scenario:.3f} ms: {off:+.2%}"
    return case.name, told, f"{BOUND:.0%}", abs(off) <= BOUND


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.script_times")
    parser.add_argument("cases", nargs="*", help="names of cases, or parts of them")
    wanted = parser.parse_args().cases or [""]
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        complain("script_times")
        return NO_TORCH
    cases = [case for case in CASES if any(part in case.name for part in wanted)]
    return show("torch scripts beside scenarios", [row(case) for case in cases])


if __name__ == "__main__":
    raise SystemExit(main())
