"""Figures of a GPU's steps, on a CPU with the calls of torch.cuda replaced."""

import gc
import json
import pickle
from types import SimpleNamespace

import pytest

from simdp.files import read_yaml
from simdp.probes import layers, zoo

torch = pytest.importorskip("torch")

CPU = torch.device("cpu")
CUDA = SimpleNamespace(type="cuda")

MLP = ["--models", "mlp", "--set", "mlp.widths=[8, 16, 4]", "--steps", "2", "--warm-up", "1"]


@pytest.fixture
def stepper():
    from simdp.probes.device import Stepper

    return Stepper(zoo.MLPSettings(widths=[8, 16, 4]), 2, "full", "sgd", CPU)


# Steps -------------------------------------------------------------------------------------------


def test_marks_become_steps_and_their_three_parts():
    from simdp.probes.device import _parts

    found = _parts([0.0, 1.0, 3.0, 7.0, 8.0, 10.0, 14.5])
    assert found.step == [7.0, 7.5]
    assert found.forward == [1.0, 1.0]
    assert found.backward == [2.0, 2.0]
    assert found.update == [4.0, 4.5]
    assert _parts([0.0]) == ([], [], [], [])


def test_the_hosts_part_of_every_step_begins_on_an_idle_device(stepper, monkeypatch):
    from simdp.probes import device as devices

    calls = []
    monkeypatch.setattr(devices, "settle", lambda device: calls.append("settle"))
    step = stepper.step
    monkeypatch.setattr(
        stepper, "step", lambda model, watch: [calls.append("step"), step(model, watch)]
    )
    found = stepper.issue(stepper.module, 3)
    assert calls == [*["settle", "step"] * 3, "settle"]
    assert [len(times) for times in found] == [3, 3, 3, 3]
    for whole, *parts in zip(*found, strict=True):
        assert whole == pytest.approx(sum(parts))
        assert min(parts) > 0


# Memory ------------------------------------------------------------------------------------------


@pytest.fixture
def allocator(monkeypatch):
    """The allocator's calls, in order; a step's peak is 3 GB, and 1.5 GB rest."""
    calls = []

    def replace(owner, name, answer=None):
        def call(*given, **options):
            calls.append((name.strip("_"), options) if options else name.strip("_"))
            return answer

        monkeypatch.setattr(owner, name, call)

    replace(torch.cuda, "reset_peak_memory_stats")
    replace(torch.cuda, "memory_allocated", 1_500_000_000)
    replace(torch.cuda, "max_memory_allocated", 3_000_000_000)
    replace(torch.cuda, "max_memory_reserved", 3_250_000_000)
    replace(torch.cuda, "empty_cache")
    replace(torch.cuda.memory, "_record_memory_history")
    replace(torch.cuda.memory, "_snapshot", {"segments": [1]})
    return calls


MEMORY = {"at_rest": "1.5 GB", "allocated": "3 GB", "reserved": "3.25 GB"}


def test_memory_is_the_peak_of_one_step(stepper, allocator):
    assert stepper.memory(stepper.module).model_dump() == MEMORY
    assert allocator[:2] == ["reset_peak_memory_stats", "memory_allocated"]
    assert "record_memory_history" not in str(allocator)


def test_a_snapshot_is_written_of_one_step_and_the_history_ends(stepper, allocator, tmp_path):
    path = tmp_path / "new" / "mlp.pickle"
    assert stepper.memory(stepper.module, path).model_dump() == MEMORY
    assert pickle.loads(path.read_bytes()) == {"segments": [1]}
    history = [call for call in allocator if call[0] == "record_memory_history"]
    assert [options for _, options in history] == [{"max_entries": 200_000}, {"enabled": None}]
    assert allocator.index("snapshot") < allocator.index(history[1])


def test_memory_of_deleted_tensors_is_returned_by_a_gpu_alone(allocator, monkeypatch):
    from simdp.probes.device import free

    monkeypatch.setattr(gc, "collect", lambda: allocator.append("collect"))
    free(CPU)
    assert allocator == []
    free(CUDA)
    assert allocator == ["collect", "empty_cache"]


def test_a_gpus_step_has_the_hosts_time_and_its_memory(stepper, allocator, tmp_path):
    from simdp.probes import layer_times

    args = SimpleNamespace(steps=2, memory=None)
    found = layer_times._of_device(args, stepper, stepper.module, "mlp_full_2_eager")
    assert found["memory"].model_dump() == MEMORY
    host = found["host"].model_dump()
    assert list(host) == ["step", "forward", "backward", "update"]
    assert all(time.endswith(" ms") for time in host.values())
    args.memory = tmp_path
    layer_times._of_device(args, stepper, stepper.module, "mlp_full_2_eager")
    assert (tmp_path / "mlp_full_2_eager.pickle").exists()


# Micro-batches -----------------------------------------------------------------------------------


def test_a_microbatch_that_does_not_fit_leaves_the_record_of_the_others(
    tmp_path, monkeypatch, capsys
):
    from simdp.probes.device import Stepper

    run = Stepper.run

    def limited(self, *given):
        if len(self.batch[0]) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return run(self, *given)

    monkeypatch.setattr(Stepper, "run", limited)
    layers.main([*MLP, "--microbatch", "2,4,8", "--out", str(tmp_path)])
    assert "micro-batches of 4, on cpu: does not fit into the device's memory" in (
        capsys.readouterr().out
    )
    found = read_yaml(tmp_path / "steps.yaml")["models"]["mlp"]["precisions"]["full"]
    assert [step.get("out_of_memory") for step in found["steps"]] == [None, True, None]
    assert list(found["steps"][1]) == ["microbatch", "out_of_memory"]
    assert [point["microbatch"] for point in found["compute"]["points"]] == [2, 8]
    monkeypatch.setattr(Stepper, "run", lambda *given: limited(SimpleNamespace(batch=[[0] * 4])))
    layers.main([*MLP, "--microbatch", "2", "--out", str(tmp_path)])
    found = read_yaml(tmp_path / "steps.yaml")["models"]["mlp"]["precisions"]["full"]
    assert found == {"steps": [{"microbatch": 2, "out_of_memory": True}]}


def test_every_microbatch_is_compiled_for_itself(stepper, monkeypatch):
    import torch._dynamo as dynamo

    from simdp.probes import layer_times

    calls = []
    monkeypatch.setattr(dynamo, "reset", lambda: calls.append("reset"))
    monkeypatch.setattr(
        torch, "compile", lambda module, **options: calls.append((module, options)) or "compiled"
    )
    assert layer_times._compiled(stepper.module) == "compiled"
    assert calls == ["reset", (stepper.module, {"dynamic": False})]


def test_a_machine_with_gpus_is_described_by_its_driver_and_nccl(monkeypatch):
    from simdp.probes.device import machine

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A GPU")
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    found = machine(CUDA, 1)
    assert (found.gpu, found.gpus, found.multiprocessors) == ("A GPU", 2, 132)
    assert found.nccl == "2.28.9"
    assert not {"gpu", "gpus", "nccl"} & set(machine(CPU, 1).model_dump())
    json.dumps(found.model_dump())
