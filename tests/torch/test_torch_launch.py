"""Scripts on virtual ranks: what each rank has for itself, and how it ends."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from simdp.distributed.launch import find  # noqa: E402
from simdp.errors import ProgramError, ScenarioError  # noqa: E402
from simdp.torch import launch  # noqa: E402


def test_each_rank_has_its_own_environment_arguments_and_main(virtually, capsys):
    virtually(
        """
        import os, sys, __main__
        import torch.distributed as dist
        dist.init_process_group("gloo")
        rank = int(os.environ["RANK"])
        os.environ["MINE"] = str(rank)
        sys.argv.append(str(rank))
        __main__.value = rank
        dist.barrier()
        names = "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MINE"
        print(*(os.environ[name] for name in names), sys.argv[-1], __main__.value, value)
        assert os.getenv("GROUP_WORLD_SIZE") == "2" and dist.is_torchelastic_launched()
        """,
        4,
        per_node=2,
    )
    assert capsys.readouterr().out.splitlines() == [
        f"{rank} {rank % 2} {rank // 2} 4 2 {rank} {rank} {rank} {rank}" for rank in range(4)
    ]


def test_generators_and_defaults_are_each_ranks_own(virtually, capsys):
    virtually(
        """
        import random
        import numpy, torch
        import torch.distributed as dist
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        first = torch.rand(1).item()  # torch seeds every fresh process alike
        torch.manual_seed(rank)
        random.seed(rank)
        numpy.random.seed(rank)
        torch.set_default_dtype(torch.float64 if rank else torch.float32)
        torch.set_grad_enabled(not rank)
        drawn = []
        for _ in range(3):
            dist.barrier()
            drawn += [torch.rand(1).item(), random.random(), numpy.random.rand()]
        torch.manual_seed(rank)
        random.seed(rank)
        numpy.random.seed(rank)
        again = []
        for _ in range(3):
            again += [torch.rand(1).item(), random.random(), numpy.random.rand()]
        assert drawn == again
        print(first, torch.get_default_dtype(), torch.is_grad_enabled())
        """
    )
    first = torch.rand(1, generator=torch.Generator().manual_seed(67280421310721)).item()
    assert capsys.readouterr().out.splitlines() == [
        f"{first} torch.float32 True",
        f"{first} torch.float64 False",
    ]
    assert torch.get_default_dtype() == torch.float32


def test_each_rank_has_flags_of_a_fresh_process(virtually, capsys):
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    flags[1].allow_tf32 = False
    torch.set_default_dtype(torch.float64)
    try:
        virtually(
            """
            import torch
            import torch.distributed as dist
            flags = torch.backends.cuda.matmul, torch.backends.cudnn
            dist.init_process_group("gloo")
            fresh = [one.allow_tf32 for one in flags], torch.get_default_dtype()
            if dist.get_rank():
                flags[0].allow_tf32, flags[1].allow_tf32 = True, False
            dist.barrier()
            print(*fresh, [one.allow_tf32 for one in flags])
            """
        )
        assert capsys.readouterr().out.splitlines() == [
            "[False, True] torch.float32 [False, True]",
            "[False, True] torch.float32 [True, False]",
        ]
        assert [one.allow_tf32 for one in flags] == [False, False]
        assert torch.get_default_dtype() == torch.float64
    finally:
        flags[1].allow_tf32 = True
        torch.set_default_dtype(torch.float32)


def test_ranks_compute_on_as_many_threads_as_under_torchrun(virtually, monkeypatch, capsys):
    before = torch.get_num_threads()
    try:
        for given, threads in ((None, 1), ("2", 2)):
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
            if given is not None:
                monkeypatch.setenv("OMP_NUM_THREADS", given)
            virtually("import torch; print(torch.get_num_threads())")
            assert capsys.readouterr().out.split() == [str(threads)] * 2
    finally:
        torch.set_num_threads(before)


def test_time_is_virtual(virtually, capsys):
    result = virtually(
        """
        import time
        import torch.distributed as dist
        dist.init_process_group("gloo")
        start, ticks = time.perf_counter(), time.time_ns()
        time.sleep(3600 * (1 + dist.get_rank()))
        look = time.monotonic()
        assert time.monotonic() > look
        dist.barrier()
        print(round(time.perf_counter() - start, 2), round((time.time_ns() - ticks) / 1e9, 2))
        """
    )
    assert capsys.readouterr().out == "7200.0 7200.0\n" * 2
    assert result.simulated_s == pytest.approx(7200, abs=0.1)


def test_lines_come_whole_and_marked(write, capsys):
    path = write(
        """
        import sys
        print("a", end=" ")
        print("b")
        sys.stdout.write("no end")
        print("error", file=sys.stderr)
        """
    )
    marks = [{"stdout": "[0]:", "stderr": ""}, {"stdout": None, "stderr": "[1]:"}]
    launch.run(launch.script(path), find("dgx-h100", 2, 2), marks=marks)
    found = capsys.readouterr()
    assert found.out == "[0]:a b\n[0]:no end"
    assert found.err == "error\n[1]:error\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise ValueError('no')", "[rank0]: ValueError: no\nrank 0 raised: exitcode 1, local_ran"),
        (
            "import sys; sys.exit(3)",
            "rank 0 left with sys.exit(3): exitcode 3, local_rank 0;",
        ),
        ("import os; os._exit(4)", "rank 0 left with os._exit(4): exitcode 4, local_rank 0;"),
        (
            "import os; os.fork()",
            "train.py:1: os.fork(): a rank is a thread, and cannot",
        ),
        (
            "import multiprocessing as mp; mp.Process(name='p', target=print).start()",
            "multiprocessing.Process('p').start: the script runs on 2 ranks already, which are "
            "threads and start no processes; start a script that makes its own ranks with "
            "--nproc-per-node 1.",
        ),
        (
            "import torch.multiprocessing as mp; mp.spawn(print, nprocs=2)",
            "torch.multiprocessing.spawn: the script runs on 2 ranks already",
        ),
        (
            "import threading, torch.distributed as dist\ndist.init_process_group('gloo')\n"
            "found = []\ndef wait():\n    try:\n        dist.barrier()\n"
            "    except Exception as error:\n        found.append(error)\n"
            "thread = threading.Thread(target=wait)\nthread.start()\nthread.join()\nraise found[0]",
            "wait: this code runs on no rank; threads that a rank starts are no ranks",
        ),
        ("x = = 1", "train.py:1: is not valid Python: invalid syntax."),
    ],
)
def test_what_goes_wrong_is_told_with_its_rank(virtually, text, told):
    with pytest.raises(ProgramError) as caught:
        virtually(text)
    assert told in str(caught.value)
    assert "simdp/torch/launch.py" not in str(caught.value)


@pytest.mark.parametrize(
    ("start", "call"),
    [
        ("mp.spawn(print, nprocs=2)", "torch.multiprocessing.spawn"),
        ("mp.Process(name='p', target=print).start()", "multiprocessing.Process('p').start"),
    ],
)
def test_processes_that_several_nodes_start_are_refused(virtually, start, call):
    with pytest.raises(ProgramError) as caught:
        virtually(f"import torch.multiprocessing as mp; {start}", 2, per_node=1)
    assert (
        f"{call}: the script runs on 2 nodes, and processes that each of them starts cannot meet "
        "here; let torchrun start them (--nproc-per-node, and RANK and LOCAL_RANK in the script), "
        "or run one node with --nnodes 1."
    ) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_who_leaves_with_nothing_wrong_has_ended(virtually):
    assert virtually("import sys; sys.exit(0)").world_size == 2


def test_a_module_is_run_as_python_does(tmp_path, monkeypatch, capsys):
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("from trainer.part import name\nprint(name, __package__)")
    (package / "part.py").write_text("name = 'part'")
    monkeypatch.chdir(tmp_path)
    launch.run(launch.module("trainer"), find("dgx-h100", 2, 2))
    assert capsys.readouterr().out == "part trainer\n" * 2
    with pytest.raises(ProgramError, match=r"^-m nothing: there is no such module to run; give"):
        launch.module("nothing")


def test_there_are_not_too_many_ranks(write):
    with pytest.raises(ScenarioError, match=r"^--nnodes x --nproc-per-node = 2048: a script runs"):
        launch.run(launch.script(write("")), find("dgx-h100", 2048, 8))


def test_modules_of_the_scripts_folder_are_each_ranks_own(virtually, write, capsys):
    write("value = []\n\nclass Named:\n    pass\n", "helper.py")
    virtually(
        """
        import sys
        import helper, json
        import torch.distributed as dist
        dist.init_process_group("gloo")
        helper.value.append(dist.get_rank())
        json.common = getattr(json, "common", 0) + 1
        found = [None, None]
        dist.all_gather_object(found, helper.Named())
        assert all(isinstance(each, helper.Named) for each in found)
        import helper as again
        print(again.value, json.common)
        """
    )
    assert capsys.readouterr().out == "[0] 2\n[1] 2\n"
    import json
    import sys

    del json.common
    assert "helper" not in sys.modules


SPAWNED = """
import os
import torch, torch.distributed as dist, torch.multiprocessing as mp


def work(rank, world, text):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world)
    x = torch.full((1000,), float(rank))
    dist.all_reduce(x)
    print(text, rank, x[0].item())
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(3, "spawned"), nprocs=3)
    context = mp.spawn(work, args=(2, "later"), nprocs=2, join=False)
    while not context.join():
        pass
    processes = [mp.Process(target=work, args=(rank, 2, "process")) for rank in range(2)]
    for process in processes:
        process.start()
    assert processes[0].is_alive() and processes[0].exitcode is None
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
"""


def test_processes_that_a_script_starts_are_ranks(virtually, capsys):
    result = virtually(SPAWNED, 1)
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(
        [f"spawned {rank} 3.0" for rank in range(3)]
        + [f"{text} {rank} 1.0" for text in ("later", "process") for rank in range(2)]
    )
    assert result.world_size == 3
    spans = list(result.trace.spans)
    assert result.simulated_s == pytest.approx(max(span.end for span in spans))
    assert len({span.start for span in spans}) >= 3  # one program after the other


def test_what_a_started_rank_raises_is_told_once(virtually):
    with pytest.raises(ProgramError) as caught:
        virtually(
            "import torch.multiprocessing as mp\ndef fail(rank):\n    1 / (1 - rank)\n"
            "if __name__ == '__main__':\n    mp.spawn(fail, nprocs=2)",
            1,
        )
    assert str(caught.value).count("ZeroDivisionError") == 1
    assert "rank 1 raised: exitcode 1, local_rank 1" in str(caught.value)
    with pytest.raises(ProgramError, match=r"spawn: nprocs is 0; give a number >= 1\.$"):
        virtually("import torch.multiprocessing as mp\nmp.spawn(print, nprocs=0)", 1)


LOADED = """
import random, sys
import numpy, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Drawn(Dataset):
    def __len__(self):
        return 23

    def __getitem__(self, place):
        mine = get_worker_info()
        return torch.tensor(
            [place, mine.id, mine.seed % 9, torch.rand(()), random.random(), numpy.random.rand()],
            dtype=torch.float64,
        )


class Stream(IterableDataset):
    def __iter__(self):
        mine = get_worker_info()
        return iter(range(10 * mine.id, 10 * mine.id + 3 + 4 * mine.id))


def batches(loader, epochs=2):
    for _ in range(epochs):
        for batch in loader:
            yield batch
            yield torch.rand(2)


if __name__ == "__main__":
    torch.manual_seed(5)
    found = list(batches(DataLoader(Drawn(), 3, shuffle=True, num_workers=2)))
    kept = DataLoader(Drawn(), 3, shuffle=True, num_workers=2, persistent_workers=True)
    found += list(batches(kept))
    found += list(batches(DataLoader(Stream(), 2, num_workers=3), 1))
    torch.save(found, sys.argv[1])
"""


def test_workers_of_a_loader_draw_what_real_ones_draw(virtually, write, tmp_path):
    ours, theirs = tmp_path / "ours.pt", tmp_path / "theirs.pt"
    virtually(LOADED, 1, ours)
    subprocess.run([sys.executable, str(write(LOADED, "real.py")), str(theirs)], check=True)
    ours, theirs = torch.load(ours), torch.load(theirs)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def test_workers_of_pipes_are_refused(virtually):
    text = """
    from torch.utils.data import DataLoader, IterDataPipe
    class Pipe(IterDataPipe):
        def __iter__(self):
            return iter(range(3))
    list(DataLoader(Pipe(), num_workers=1))
    """
    with pytest.raises(ProgramError, match=r"workers of an IterDataPipe are not served; use num_"):
        virtually(text, 1)


def test_replaced_classes_are_classes(virtually, capsys):
    virtually(
        """
        import torch
        import torch.distributed as dist
        from torch.utils.data import dataloader
        dist.init_process_group("gloo")
        store = dist.TCPStore("127.0.0.1", 1234, 2, dist.get_rank() == 0)
        assert isinstance(store, dist.TCPStore) and isinstance(store, dist.Store)
        assert not isinstance(store, dist.FileStore) and store.port == 1234
        assert isinstance(dist.FileStore("kept", 2), dist.FileStore)
        one, several = ([iter(dataloader.DataLoader([1, 2], num_workers=n))] for n in (0, 1))
        kind = dataloader._MultiProcessingDataLoaderIter
        print(isinstance(one[0], kind), isinstance(several[0], kind))
        """
    )
    assert capsys.readouterr().out.splitlines() == ["False True"] * 2


def test_each_rank_sets_its_own_handlers_of_signals(virtually, capsys):
    import signal

    before = signal.getsignal(signal.SIGTERM)
    virtually(
        """
        import os, signal
        import torch.distributed as dist
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        first = signal.signal(signal.SIGTERM, lambda *_: rank)
        dist.barrier()
        print(first is signal.SIG_DFL, signal.getsignal(signal.SIGTERM)())
        """
    )
    assert capsys.readouterr().out.splitlines() == ["True 0", "True 1"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_each_rank_replaces_its_own_print(virtually, capsys):
    text = """
        import builtins
        import torch.distributed as dist
        dist.init_process_group("gloo")
        write, rank = builtins.print, dist.get_rank()
        builtins.print = lambda *given: write(*given) if rank == 0 else None
        dist.barrier()
        print("rank", rank)
        """
    before = print
    virtually(text)
    assert capsys.readouterr().out.splitlines() == ["rank 0"]
    assert print is before


def test_packages_with_settings_of_a_process_are_imported_by_each_rank(
    virtually, capsys, tmp_path, monkeypatch
):
    package = tmp_path / "site-packages" / "hydra"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "settings.py").write_text("chosen = []")
    monkeypatch.syspath_prepend(package.parent)
    virtually(
        """
        import torch.distributed as dist
        from hydra import settings
        dist.init_process_group("gloo")
        settings.chosen.append(dist.get_rank())
        dist.barrier()
        import hydra.settings
        print(hydra.settings.chosen)
        """
    )
    assert capsys.readouterr().out.splitlines() == ["[0]", "[1]"]
