"""Blocks beside work: what is launched, timed and written, and what a machine may lack."""

import ctypes
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from simdp.files import read_yaml
from simdp.probes import contention, zoo
from simdp.probes.arguments import ProbeError
from simdp.probes.contention import BesideBlocks, Holder

torch = pytest.importorskip("torch")

GPU, MEMORY = {"gpu": "A GPU"}, {"memory": "80 GB"}


def refusal(*given):
    with pytest.raises(ProbeError) as caught:
        contention.main(list(given))
    line = str(caught.value)
    assert "\n" not in line
    return line


# What is missing ---------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


def test_without_a_gpu_it_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refusal().startswith("--device: torch finds no GPU here")


def test_without_a_compiler_it_is_refused(gpu, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert refusal() == "simdp.probes.contention: nvcc is not on the PATH; install CUDA's toolkit."


def compiler(folder, script):
    path = folder / "nvcc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_first_line_of_a_compiler_that_fails_is_shown(gpu, tmp_path, monkeypatch):
    failing = compiler(tmp_path, "echo 'nvcc fatal: no host compiler' >&2; echo more >&2; exit 1")
    monkeypatch.setattr(shutil, "which", lambda name: failing)
    wanted = f"nvcc: nvcc fatal: no host compiler; see {contention.SOURCE}."
    assert refusal() == wanted
    assert contention.SOURCE.exists()
    silent = compiler(tmp_path, "exit 3")
    with pytest.raises(ProbeError, match=r"^nvcc: 3; see .*hold\.cu\.$"):
        contention._compile(silent, tmp_path)


def test_a_compiled_kernel_is_loaded_and_its_registers_are_printed(tmp_path, capsys):
    import _ctypes

    given = '[ "$8" = -o ] && cp "$library" "$9"; echo "ptxas info: Used 90 registers" >&2'
    found = contention._compile(
        compiler(tmp_path, f"library={_ctypes.__file__}\n{given}"), tmp_path
    )
    assert isinstance(found, ctypes.CDLL)
    assert capsys.readouterr().out == "ptxas info: Used 90 registers\n"
    contention._compile(compiler(tmp_path, f"cp {_ctypes.__file__} $9"), tmp_path)
    assert capsys.readouterr().out == "compiled\n"


# Blocks ------------------------------------------------------------------------------------------


class Event:
    """An event that takes the next of some instants [ms]."""

    instants = iter(())

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = next(Event.instants)

    def elapsed_time(self, other):
        return other.at - self.at


class Library:
    """A compiled kernel: every block moves three pieces in a microsecond."""

    def __init__(self, status=0):
        self.status, self.launches = status, []

    def piece_bytes(self):
        return 64

    def launch(self, blocks, shared, from_, to, pieces, period, stop, limit, moved, stream):
        self.launches.append((blocks.value, pieces.value, period.value, limit.value))
        figures = ctypes.cast(moved, ctypes.POINTER(ctypes.c_longlong))
        for block in range(blocks.value):
            figures[2 * block], figures[2 * block + 1] = 3 * 64 * 2, 1000
        return self.status


@pytest.fixture
def holder(monkeypatch):
    stream = SimpleNamespace(cuda_stream=0, wait_event=lambda event: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(contention, "BUFFER_BYTES", 256)
    return Holder(Library(), 4, "cpu")


def test_work_is_timed_beside_blocks_at_a_rate(holder, monkeypatch):
    done = []
    monkeypatch.setattr(Event, "instants", iter([1.0, 3.5]))
    held = holder.time(lambda: done.append("work"), 2, 50e9)
    assert done == ["work"]
    assert held == BesideBlocks(2.5e-3, 2 * 3 * 64 * 2 / 1e-6)
    # 64 bytes read and 64 written by each of two blocks at every tick make up 50 GB/s
    assert holder.library.launches == [(2, 4, int(2e9 * 64 * 2 / 50e9), 5_000_000_000)]
    assert holder.stop.item() == 1
    assert [buffer.numel() for buffer in holder.buffers] == [256, 256]


def test_blocks_may_wait_only_and_work_may_be_alone(holder, monkeypatch):
    monkeypatch.setattr(Event, "instants", iter([0.0, 1.0, 0.0, 1.0]))
    assert holder.time(lambda: None, 0, 0.0) == BesideBlocks(1e-3, 0)
    assert holder.library.launches == []
    holder.time(lambda: None, 4, 0.0)
    assert holder.library.launches[0][2] == 0


def test_a_launch_that_fails_is_an_error(holder):
    holder.library.status = 7
    with pytest.raises(ProbeError) as caught:
        holder.time(lambda: None, 1, 0.0)
    assert str(caught.value) == "simdp.probes.contention: CUDA error 7 at the launch."


# Work --------------------------------------------------------------------------------------------


def test_every_kind_of_work_runs_and_models_come_last(monkeypatch):
    """On torch's meta device, which computes shapes alone."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    settings = zoo.MLPSettings(widths=[8, 16, 4])
    args = SimpleNamespace(precision=["full"])
    found = {}
    for name, work in contention._works(args, {"mlp": settings}, {"mlp": 2}, "meta"):
        found[name] = work
        work()
    assert list(found) == [
        *("product_8192", "product_4096", "product_1024", "elementwise", "layer_norm"),
        *("attention", "convolution", "mlp, micro-batch 2"),
    ]


def test_rows_compare_the_median_beside_blocks_with_that_alone(capsys):
    times = {0: iter([9, 9, 2.0, 1.0, 3.0]), 4: iter([3.0, 4.0, 3.0])}
    holder = SimpleNamespace(
        time=lambda work, blocks, rate: BesideBlocks(next(times[blocks]) / 1e3, blocks * 10e9)
    )
    args = SimpleNamespace(blocks=[4], rates=[50e9])
    assert contention._measure(holder, "product", None, args) == [
        {"work": "product", "blocks": 0, "rate": "0 GB/s", "moved": "0 GB/s"}
        | {"time": "2 ms", "ratio": 1.0},
        {"work": "product", "blocks": 4, "rate": "50 GB/s", "moved": "40 GB/s"}
        | {"time": "3 ms", "ratio": 1.5},
    ]
    assert capsys.readouterr().out == "product: 2 ms alone, 1 cases beside blocks\n"


def test_the_record_has_the_machine_its_figures_and_a_row_for_each_case(
    gpu, tmp_path, monkeypatch, capsys
):
    from simdp.probes import device as devices

    freed = []
    monkeypatch.setattr(shutil, "which", lambda name: name if name != "nvcc" else None)
    monkeypatch.setattr(contention, "_compile", lambda nvcc, folder: nvcc)
    holder = SimpleNamespace(
        time=lambda work, blocks, rate: BesideBlocks(work() * (1 + blocks), rate)
    )
    monkeypatch.setattr(contention, "Holder", lambda library, blocks, device: holder)
    monkeypatch.setattr(contention, "_works", lambda *given: iter([("sleep", lambda: 1e-3)]))
    named, sized = (SimpleNamespace(model_dump=given.copy) for given in (GPU, MEMORY))
    monkeypatch.setattr(devices, "machine", lambda device, threads: named)
    monkeypatch.setattr(devices, "figures", lambda device, precisions: sized)
    monkeypatch.setattr(devices, "free", freed.append)
    path = tmp_path / "contention.yaml"
    contention.main(["--blocks", "1,3", "--rates", "wait", "--out", str(path)])
    record = read_yaml(path)
    assert [(row["blocks"], row["time"]) for row in record["rows"]] == [
        *((0, "1 ms"), (1, "2 ms"), (3, "4 ms"))
    ]
    assert (record["machine"], record["device"]) == (GPU, MEMORY)
    assert [device.type for device in freed] == ["cuda"]
    assert str(path) in capsys.readouterr().out
