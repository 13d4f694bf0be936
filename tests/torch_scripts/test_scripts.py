"""Scripts as people write them: under ``simdp torchrun`` they learn what real processes learn.

Each runs unchanged on virtual GPUs, and in real processes that talk by gloo; every file that it
saves is compared. Scripts that name CUDA and nothing else run there with `cpu_shim`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from table import SCRIPTS  # noqa: E402

HERE = Path(__file__).parent
LIMIT_S = 60
TRIES = 3  # of torchrun itself, which may lose the port that it has found to another process
NEED = {"accelerate_ddp": ["accelerate"], "hf_trainer": ["transformers", "accelerate"]}
IMPORTS = {
    "accelerate_ddp": ["accelerate"],
    "hf_trainer": ["transformers.trainer", "transformers.models.gpt2.modeling_gpt2"],
}
"""Imported before the fork, where it takes seconds."""

pytestmark = pytest.mark.slow


class Runner:
    """The process that runs scripts, one after the other."""

    def __init__(self):
        command = [sys.executable, str(HERE / "runner.py")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # torchrun's own; sums depend on it
        self.process = subprocess.Popen(command, text=True, env=one_thread, **pipes)

    def __call__(self, name, kind, folder, **more):
        script = SCRIPTS[name]
        folder.mkdir()
        count = script.devices or script.ranks
        sizes = f"devices_per_node: {count}, world_size: {count}"
        (folder / "cluster.yaml").write_text(f"cluster: {{machine: dgx-a100, {sizes}}}\n")
        size = script.ranks if script.launched else 1
        job = {
            "kind": kind,
            "script": str(HERE / "scripts" / f"{name}.py"),
            "args": list(script.args),
            "flags": ["--no-plots", "--cluster", "cluster.yaml", "--nproc-per-node", str(size)],
            "ranks": script.ranks,
            "launched": script.launched,
            "devices": count,
            "shim": script.shim,
            "imports": IMPORTS.get(name, []),
            "folder": str(folder),
            "limit": LIMIT_S,
        }
        self.process.stdin.write(json.dumps({**job, **more}) + "\n")
        self.process.stdin.flush()
        done = json.loads(self.process.stdout.readline())
        assert not any(done["statuses"]), (folder / "log.txt").read_text()[-3000:]
        return done


def differences(real, virtual, within, path=""):
    """What is not equal in two nested values, by where it stands."""
    if isinstance(real, torch.Tensor):
        if real.shape != virtual.shape or real.dtype != virtual.dtype:
            return [f"{path}: {virtual.dtype} {tuple(virtual.shape)} for {tuple(real.shape)}"]
        off = (real.double() - virtual.double()).abs().max().item() if real.numel() else 0.0
        largest = real.double().abs().max().item() if real.numel() else 0.0
        return [] if off <= within * largest else [f"{path}: off by {off:.3g} of {largest:.3g}"]
    if type(real) is not type(virtual):
        return [f"{path}: {type(virtual)} for {type(real)}"]
    if isinstance(real, dict):
        if list(real) != list(virtual):
            return [f"{path}: other keys"]
        pairs = [(key, real[key], virtual[key]) for key in real]
    elif isinstance(real, (list, tuple)):
        if len(real) != len(virtual):
            return [f"{path}: {len(virtual)} for {len(real)}"]
        pairs = [(key, *both) for key, both in enumerate(zip(real, virtual, strict=True))]
    else:
        return [] if real == virtual else [f"{path}: {virtual!r} for {real!r}"]
    return [line for key, a, b in pairs for line in differences(a, b, within, f"{path}.{key}")]


def saved(folder):
    found = sorted(folder.glob("*.pt"))
    return {one.name: torch.load(one, weights_only=False, map_location="cpu") for one in found}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_learns_what_it_learns_in_real_processes(name, runner, tmp_path):
    for library in NEED.get(name, ()):
        pytest.importorskip(library)
    runner(name, "simdp", tmp_path / "virtual")
    runner(name, "real", tmp_path / "real")
    virtual, real = saved(tmp_path / "virtual"), saved(tmp_path / "real")
    assert real
    assert list(virtual) == list(real)
    script = SCRIPTS[name]
    assert differences(real, virtual, script.within) == []
    assert bool(script.within) == bool(script.why)


def test_a_difference_is_seen():
    one = {"a": torch.ones(2), "b": [1, "x"]}
    other = {"a": torch.tensor([1.0, 1.0 + 1e-7]), "b": [1, "y"]}
    assert len(differences(one, other, 0.0)) == 2
    assert differences(one, other, 1e-6) == [".b.1: 'y' for 'x'"]


@pytest.mark.long
def test_torchruns_own_processes_learn_the_same(runner, tmp_path):
    """The forks stand for torchrun: here it starts the processes itself."""
    runner("mingpt", "real", tmp_path / "forks")
    folder = tmp_path / "torchrun"
    folder.mkdir()
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(HERE / "scripts" / "mingpt.py")]
    for _ in range(TRIES):
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, capture_output=True, text=True
        )
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr[-3000:]
    assert differences(saved(folder), saved(tmp_path / "forks"), 0.0) == []
    shutil.rmtree(folder)
