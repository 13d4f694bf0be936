"""Text of jobs: each kind is recognised, in any mixture, and its figures are read."""

import json

import pytest
from for_each import for_each

from simdp.errors import ScenarioError
from simdp.traces import sort_files
from simdp.traces.logs import READERS, read_log


def read(text):
    return read_log(text, "a.log")


# The watchdog ------------------------------------------------------------------------------------


@for_each(
    ("line", "expected"),
    [
        (
            "[rank13]:[E218 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective "
            "operation timeout: WorkNCCL(SeqNum=216, OpType=ALLTOALL_BASE, NumelIn=1379328, "
            "NumelOut=1572864, Timeout(ms)=600000) ran for 600045 milliseconds before timing out.",
            (13, "", 216, "all_to_all", 1379328, 1572864, 600.0, 600.045),
        ),
        (
            "[E ProcessGroupNCCL.cpp:464] [Rank 0] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=1, OpType=_REDUCE_SCATTER_BASE, Timeout(ms)=10000) ran for 10917 "
            "milliseconds before timing out.",
            (0, "", 1, "reduce_scatter", None, None, 10.0, 10.917),
        ),
        (
            "Timeout SeqNum=96125, OpType=ALLREDUCE, NumelIn=544997376",
            (None, "", 96125, "all_reduce", 544997376, None, None, None),
        ),
    ],
)
def test_a_call_that_timed_out_is_read_in_every_version(line, expected):
    (call,) = read(line).watchdog.calls
    assert tuple(call) == expected


def test_a_call_gets_its_group_from_the_line_that_follows_and_counts_once():
    call = (
        "[rank0]: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=57, "
        "OpType=ALLREDUCE, NumelIn=32, NumelOut=32, Timeout(ms)=600000) ran for 600045 ms\n"
    )
    group = (
        "[rank0]: [PG ID 11 PG GUID 112 Rank 0] Exception detected by watchdog at work: 57, last "
        "enqueued NCCL work: 58, last completed NCCL work: 56.\n"
    )
    found = read(call + group + call).watchdog
    (one,) = found.calls
    assert one.group == "112"
    assert found.progress == ((0, "112", 58, 56),)


@for_each(
    ("line", "rank", "code"),
    [
        ("failed (exitcode: -9) local_rank: 3 (pid: 438) of binary: python", 3, -9),
        ("['python', '-u', 't.py', '--local_rank=2'] exits with return code = -9", 2, -9),
        ("[12.3] Out of memory: Killed process 4321 (python3) total-vm:99kB", None, -9),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", None, -9),
        ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error.", None, -7),
        ("[rank5]: ValueError: expected 4 values", 5, None),
    ],
)
def test_processes_that_end_are_read(line, rank, code):
    (end,) = read(line).watchdog.ends
    assert (end.rank, end.code) == (rank, code)


def test_a_successful_end_is_none():
    assert read("exits with return code = 0") is None


# NCCL --------------------------------------------------------------------------------------------

NCCL = """\
node-a:10:20 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
node-a:10:20 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE ; OOB eth0:10.0.0.1<0>
node-a:10:20 [0] NCCL INFO Using network IB
node-a:10:20 [0] NCCL INFO comm 0x1 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 7000 - Init START
node-a:10:20 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'
node-a:10:20 [0] NCCL INFO               + NET[25.0] - NET/0 (ab/1/25.000000)
node-a:10:20 [0] NCCL INFO NCCL_ALGO set by environment to Ring.
node-a:10:20 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0/GDRDMA
node-b:11:21 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/1
node-a:10:20 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node-a:10:20 [0] NCCL INFO Channel 00/0 : 2[2] -> 3[3] via SHM/direct/direct
node-a:10:20 [0] NCCL INFO 24 coll channels, 0 nvls channels, 32 p2p channels
node-a:10:20 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer
"""


def test_nccl_says_its_network_cards_channels_peers_algorithm_and_gpudirect():
    log = read(NCCL).nccl
    assert log.versions == ["2.21.5"]
    assert log.hosts == ["node-a", "node-b"]
    assert log.networks == ["IB"]
    assert log.cards == {"node-a": ["mlx5_0", "mlx5_1"]}
    assert log.fabric == "RoCE"
    assert log.speeds == {"0": 25e9}
    assert log.num_ranks == 16
    assert log.channels == 24
    assert log.algorithms == ["RING"]
    assert dict(log.transports) == {"NET/IB": 2, "P2P": 1, "SHM": 1}
    assert log.direct == 1
    assert log.gdr is False
    assert log.nodes() == 2
    assert log.warnings[0].text.startswith("socketProgress")


def test_one_node_without_channels_of_the_network_is_one():
    log = read("a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read").nccl
    assert log.nodes() == 1


def test_a_table_that_begins_and_has_no_row_is_unfinished():
    head = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    assert read(head).nccl.unfinished
    row = "   8     2     float     sum      -1     9.85    0.00    0.00      0\n"
    assert not read(head + row).nccl.unfinished


# Topology ----------------------------------------------------------------------------------------


def test_the_matrix_of_nvidia_smi_is_read_with_its_cards():
    text = (
        "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\n"
        "GPU0\t X \tNV12\tSYS\tPIX\t0-47\n"
        "GPU1\tNV12\t X \tSYS\tNODE\t0-47\n"
        "GPU2\tSYS\tSYS\t X \tSYS\t48-95\n"
        "NIC0\tPIX\tNODE\tSYS\t X \n"
        "  NIC0: mlx5_0\n"
    )
    found = read(text).topology
    assert found.gpus == ("GPU0", "GPU1", "GPU2")
    assert found.cards == ("NIC0",)
    assert found.between_gpus() == {"NV12", "SYS"}
    assert found.to_cards() == {"PIX", "NODE", "SYS"}
    assert found.has_nvlink


def test_access_control_of_bridges_is_counted():
    text = "ACSCtl: SrcValid+ TransBlk- ReqRedir+\nACSCtl: SrcValid- TransBlk- ReqRedir-\n"
    found = read(text).topology
    assert (found.bridges, found.blocking) == (2, 1)


# Memory ------------------------------------------------------------------------------------------


def test_messages_of_torch_1_and_2_have_the_same_figures():
    old = (
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 1; 16.00 GiB total capacity; 9.00 GiB "
        "already allocated; 1.00 GiB free; 12.00 GiB reserved in total by PyTorch)"
    )
    new = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 16.00 GiB "
        "of which 1.00 GiB is free. Of the allocated memory 9.00 GiB is allocated by PyTorch, and "
        "3.00 GiB is reserved by PyTorch but unallocated."
    )
    (first,), (second,) = (read(text).memory.failures for text in (old, new))
    assert first == second
    gib = 2**30
    assert tuple(first[:7]) == (None, 1, 2 * gib, 0.005 * gib, 16 * gib, gib, 9 * gib)
    assert first.unused == 3 * gib


def test_other_processes_of_a_device_are_read():
    text = (
        "Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 24.00 GiB of which 0 bytes is "
        "free. Process 1 has 15.25 GiB memory in use. Including non-PyTorch memory, this process "
        "has 8.00 GiB memory in use."
    )
    (found,) = read(text).memory.failures
    assert found.others == (15.25 * 2**30,)
    assert found.in_use == 8 * 2**30


def test_the_peaks_of_a_memory_summary_are_read():
    text = """\
|                  PyTorch CUDA memory summary, device ID 3                 |
|            CUDA OOMs: 1            |        cudaMalloc retries: 7         |
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
| Allocated memory      |   1024 MiB |  20480 MiB |    100 GiB |     99 GiB |
| Active memory         |   1024 MiB |  20480 MiB |    100 GiB |     99 GiB |
| GPU reserved memory   |  30720 MiB |  30720 MiB |     30 GiB |      0 B   |
| Non-releasable memory |    512 MiB |   4096 MiB |      9 GiB |      9 GiB |
"""
    (found,) = read(text).memory.summaries
    mib = 2**20
    assert tuple(found) == (3, 20480 * mib, 30720 * mib, 4096 * mib, 1, 7)


# Progress ----------------------------------------------------------------------------------------


def test_bars_of_tqdm_are_read_with_both_kinds_of_rates():
    slow, fast = read(
        "  2%|2         | 11/620 [00:57<49:56,  4.92s/it]\r"
        "Map:  50%|##### | 5000/10000 [00:10<00:10, 500.00 examples/s]"
    ).progress.bars
    assert (slow.done, slow.total, slow.elapsed_s, slow.seconds) == (11, 620, 57.0, 4.92)
    assert (fast.label, fast.seconds, fast.unit) == ("Map", 1 / 500, "examples")


@for_each(
    ("line", "expected"),
    [
        (
            "step: 10  loss:  1.5  memory: 26GiB  wps: 1,786  mfu: 10.46%",
            (10, None, 1786.0, 0.1046),
        ),
        (
            " iteration      100/  500 | elapsed time per iteration (ms): 1234.5 | lm loss: 2",
            (100, 1.2345, None, None),
        ),
        ("Step 7: step_time=0.320s loss=1.2", (7, 0.32, None, None)),
    ],
)
def test_lines_of_steps_are_read(line, expected):
    (found,) = read(line).progress.steps
    assert tuple(found[:4]) == pytest.approx(expected)


# Files -------------------------------------------------------------------------------------------


def test_a_text_of_another_kind_is_refused_in_one_line_that_lists_what_is_read(tmp_path):
    path = tmp_path / "poem.txt"
    path.write_text("roses are red\n")
    with pytest.raises(ScenarioError) as refused:
        sort_files([path])
    (line,) = refused.value.problems
    assert line.startswith(f"{path}: holds nothing that is read here; allowed are traces of ")
    assert all(kind in line for kind in READERS)


def test_every_file_that_is_not_understood_has_its_line(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"\0\1\2")
    with pytest.raises(ScenarioError) as refused:
        sort_files([tmp_path / "a", tmp_path / "b"])
    assert len(refused.value.problems) == 2


def test_a_folder_gives_its_texts_and_its_model(tmp_path):
    (tmp_path / "train.log").write_text("  2%|2   | 11/620 [00:57<49:56,  4.92s/it]\n")
    (tmp_path / "notes.md").write_text("nothing\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    found = sort_files([tmp_path])
    assert [log.name for log in found.logs] == ["train.log"]
    assert found.configs == [tmp_path / "config.json"]
