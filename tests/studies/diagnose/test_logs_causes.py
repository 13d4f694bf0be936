"""Causes from text: expected, obtained, the ranks to blame, and the layer of a size."""

import json
from pathlib import Path

import pytest
import yaml
from for_each import for_each

from simdp.cli import run_command_line
from simdp.errors import ScenarioError
from simdp.results.collective import bus_bandwidth_factor
from simdp.studies.diagnose import diagnose
from simdp.studies.diagnose.expected import ReferenceMachines
from simdp.studies.diagnose.logs import diagnose_logs
from simdp.studies.diagnose.logs.sizes import KnownModels, in_words
from simdp.traces.logs import read_log

THREADS = Path(__file__).parent / "threads"


def found_in(*texts, **options):
    return diagnose_logs([read_log(text, f"{i}.log") for i, text in enumerate(texts)], **options)


def waiting(rank, sequence=5, name="ALLREDUCE", num_in=1000, num_out=None, limit=600):
    out = num_in if num_out is None else num_out
    call = f"SeqNum={sequence}, OpType={name}, NumelIn={num_in}, NumelOut={out}"
    return (
        f"[rank{rank}]: [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL({call}, Timeout(ms)={limit}000) "
        f"ran for {limit}050 milliseconds before timing out.\n"
    )


def causes(found):
    return [(one.cause, one.confidence) for one in found.verdict]


# Threads -----------------------------------------------------------------------------------------


def threads(name):
    return yaml.safe_load((THREADS / f"{name}.yaml").read_text())


def check_thread(thread):
    """The confirmed cause is among the first three, and no other is certain or comes first."""
    texts = [read_log(text, name) for name, text in thread["files"].items()]
    verdict = diagnose_logs(texts).verdict
    assert thread["cause"] in [one.cause for one in verdict[:3]]
    (right,) = [one for one in verdict if one.cause == thread["cause"]]
    assert [one.cause for one in verdict if one.confidence == "certain"] in (
        [],
        [thread["cause"]],
    )
    assert list(right.ranks) == thread.get("ranks", list(right.ranks))
    assert thread.get("says", "") in right.evidence
    assert right.expected
    assert right.obtained
    assert right.remedy


@for_each(
    "thread", threads("developed") + threads("set_aside"), ids=lambda thread: thread["source"]
)
def test_public_threads_have_their_confirmed_cause(thread):
    check_thread(thread)


# Hangs -------------------------------------------------------------------------------------------


def test_the_size_of_a_collective_names_its_layer():
    text = "".join(waiting(rank, 96125, num_in=544_997_376) for rank in (1, 2, 3))
    (first,) = found_in(text).verdict
    assert first.ranks == (0,)
    assert "all_reduce 96125 of 544,997,376 elements" in first.evidence
    assert "152,064 x 3,584: embedding or head of qwen2.5-7b" in first.evidence


def test_ranks_that_call_different_collectives_are_certain():
    found = found_in(
        *(waiting(rank, name="BROADCAST" if rank == 2 else "ALLREDUCE") for rank in range(4))
    )
    assert causes(found) == [("desynchronised", "certain")]
    assert found.verdict[0].ranks == (2,)
    assert "rank 2: broadcast" in found.verdict[0].evidence


def test_ranks_with_different_sizes_are_certain():
    found = found_in("".join(waiting(rank, num_in=1000 + (rank == 1)) for rank in range(4)))
    assert found.verdict[0].ranks == (1,)
    assert "1,001 elements" in found.verdict[0].obtained


def test_ranks_in_different_collectives_are_desynchronised():
    found = found_in(waiting(0, 1516, num_in=25427968) + waiting(1, 1517, num_in=1))
    assert causes(found) == [("desynchronised", "likely")]
    assert found.verdict[0].ranks == (1,)


def test_the_world_follows_from_the_sizes_of_a_gather():
    text = "".join(waiting(rank, 50, "_ALLGATHER_BASE", 10, 80) for rank in range(7))
    assert found_in(text).verdict[0].ranks == (7,)


def test_a_single_rank_that_waits_is_no_evidence_against_it():
    assert causes(found_in(waiting(2))) == [("desynchronised", "possible")]


def test_all_ranks_that_wait_may_have_a_network_that_does_not_answer():
    text = "".join(waiting(rank, 50, "_ALLGATHER_BASE", 10, 40) for rank in range(4))
    assert causes(found_in(text)) == [("desynchronised", "possible"), ("slow_link", "possible")]


def test_a_rank_that_failed_comes_before_those_that_wait_for_it():
    found = found_in(waiting(0) + waiting(1), "[rank2]: ValueError: no such key\n")
    assert causes(found) == [("rank_failed", "likely")]
    assert found.verdict[0].ranks == (2,)
    assert "ValueError: no such key" in found.verdict[0].evidence


def test_a_killed_rank_ran_out_of_host_memory():
    text = "failed (exitcode: -9) local_rank: 1 (pid: 438) of binary: python\n"
    found = found_in(waiting(0) + text)
    assert causes(found)[0] == ("host_out_of_memory", "likely")
    assert found.verdict[0].ranks == (1,)


def test_a_checkpoint_that_takes_longer_than_the_timeout_is_a_straggler():
    text = "Saving model checkpoint to /out\n" + "".join(waiting(rank, 900) for rank in (1, 2))
    assert ("straggler", "likely") in causes(found_in(text))


def test_a_rank_without_lines_of_its_group_waits_with_the_others():
    status = (
        "[rank2]: [PG 0 Rank 2] Timeout at NCCL work: 900, last enqueued NCCL work: 905, last "
        "completed NCCL work: 899.\n"
    )
    text = "".join(waiting(rank, 900) for rank in (1, 2, 3)) + status
    (first,) = found_in(text).verdict
    assert first.ranks == (0,)
    assert "ranks 1, 2, 3 wait" in first.evidence


def test_groups_with_equal_numbers_are_apart():
    def line(rank, guid, number):
        status = f"last enqueued NCCL work: {number}, last completed NCCL work: {number - 1}."
        group = f"[rank{rank}]: [PG ID 11 PG GUID {guid} Rank 0] Timeout at NCCL work: {number}, "
        return f"{waiting(rank, number)}{group}{status}\n"

    found = found_in(line(13, 119, 216) + line(15, 112, 57))
    assert causes(found) == [("desynchronised", "possible")]


def test_collectives_that_torch_compared_are_certain():
    text = "\n".join(
        f"Detected mismatch between collectives on ranks. Rank {rank} is running inconsistent "
        f"collective: CollectiveFingerPrint(OpType=ALLGATHER, TensorShape=[{size}, 8], ...)"
        for rank, size in ((0, 41), (1, 40), (2, 40))
    )
    (first,) = found_in(text).verdict
    assert (first.cause, first.confidence, first.ranks) == ("desynchronised", "certain", (0,))


def test_parameters_without_gradients_are_named():
    text = (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting "
        "a new one.\nParameter indices which did not receive grad for rank 0: 5 6\n"
    )
    (first,) = found_in(text).verdict
    assert (first.cause, first.confidence) == ("unused_parameters", "certain")
    assert "parameters 5 6" in first.evidence


def test_sizes_of_activations_are_not_compared_with_parameters():
    text = waiting(1, 50, "ALLTOALL_BASE", 1_379_328, 1_572_864)
    assert "mpt-125m" not in found_in(text).verdict[0].evidence


# Networks ----------------------------------------------------------------------------------------


def bench(busbw, nodes=2, gpus=8, device="NVIDIA A100-SXM4-80GB", nbytes=2**30):
    world = nodes * gpus
    listed = [
        f"#  Rank {rank:2} Group  0 Pid {rank + 9} on node-{rank // gpus} "
        f"device {rank % gpus} [0x07] {device}"
        for rank in range(world)
    ]
    factor = 2 * (world - 1) / world
    time = nbytes / (busbw * 1e9 / factor) * 1e6
    head = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong"
    units = "#   (B)  (elements)      (us)  (GB/s)  (GB/s)       (us)  (GB/s)  (GB/s)"
    cells = f"{time:.1f} {busbw / factor:.2f} {busbw:.2f} 0"
    row = f"{nbytes} {nbytes // 4} float sum -1 {cells} {cells}"
    return "\n".join([*listed, head, units, row, ""])


def cards(number, ends="/GDRDMA"):
    using = " ".join(f"[{i}]mlx5_{i}:1/IB" for i in range(number))
    return (
        f"node-0:1:2 [0] NCCL INFO NET/IB : Using {using} [RO]; OOB eth0:10.0.0.1<0>\n"
        f"node-0:1:2 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0{ends}\n"
        f"node-1:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/0{ends}\n"
    )


def test_a_bandwidth_as_expected_is_no_finding():
    assert found_in(cards(8) + bench(180)).verdict == ()


def test_the_bandwidth_is_that_of_one_card():
    found = found_in(cards(1) + bench(24))
    assert causes(found) == [("one_network_card", "likely")]
    assert "of 200 Gb/s (mlx5_0) for 8 GPUs" in found.verdict[0].evidence
    assert found.verdict[0].obtained == "24 GB/s of bus bandwidth"
    assert "GB/s of bus bandwidth on dgx-a100" in found.verdict[0].expected


def test_the_bandwidth_is_that_of_no_gpudirect():
    found = found_in(cards(8, "") + bench(33))
    assert causes(found)[0] == ("no_gpudirect", "likely")
    assert "nvidia-peermem" in found.verdict[0].remedy


def test_the_bandwidth_is_that_of_a_socket():
    text = (
        "node-0:1:2 [0] NCCL INFO NET/IB : No device found.\n"
        "node-0:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n"
        "node-0:1:2 [0] NCCL INFO Using network Socket\n"
        "node-1:1:2 [0] NCCL INFO Using network Socket\n"
    )
    found = found_in(text + bench(1.1))
    assert causes(found) == [("socket_transport", "certain")]
    assert found.verdict[0].obtained == "1.1 GB/s of bus bandwidth"


OVER_TCP = "node-0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0] [send] via NET/Socket/0\n"


@for_each(("nodes", "gpus", "name"), [(2, 1, "all_reduce"), (4, 4, "all_gather")])
def test_the_bandwidth_expected_is_that_of_the_largest_size_on_as_many_nodes(nodes, gpus, name):
    device, world = "NVIDIA A100-SXM4-80GB", nodes * gpus
    small = bench(0.5, nodes, gpus, device, 2**20)
    last = bench(1.1, nodes, gpus, device).splitlines()[-1]
    text = f"{OVER_TCP}# Collective test starting: {name}_perf\n{small}{last}\n"
    found = found_in(text, machine="dgx-a100")
    time = ReferenceMachines("dgx-a100", device, world).across(name, 2.0**30, nodes, gpus)
    usual = 2**30 / time.usual * bus_bandwidth_factor(name, world)
    assert found.verdict[0].expected.startswith(f"{usual / 1e9:.3g} GB/s of bus bandwidth")


def test_a_log_that_lists_no_ranks_but_has_messages_is_of_two_nodes():
    table = bench(1.1, nodes=2, gpus=1)
    rows = [line for line in table.splitlines() if not line.startswith("#  Rank")]
    unlisted = "\n".join(["# nranks: 2", *rows, ""])
    expected, of_two = (
        found_in(OVER_TCP + text, machine="dgx-a100").verdict[0].expected
        for text in (table, unlisted)
    )
    assert of_two == expected
    alone = "node-0:1:2 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
    assert found_in(alone + unlisted, machine="dgx-a100").verdict == ()


def test_a_row_that_other_output_breaks_is_ignored():
    text = cards(1) + bench(24) + "         128            32     float     sum\n"
    assert causes(found_in(text)) == [("one_network_card", "likely")]


def test_sockets_do_not_matter_within_a_node():
    text = (
        "node-0:1:2 [0] NCCL INFO NET/IB : No device found.\n"
        "node-0:1:2 [0] NCCL INFO Using network Socket\n"
        "node-0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n"
    )
    assert found_in(text).verdict == ()


@for_each(
    ("warning", "cause"),
    [
        ("Call to posix_fallocate failed : No space left on device", "shared_memory_full"),
        ("Duplicate GPU detected : rank 0 and rank 3 both on CUDA device 0", "duplicate_device"),
        ("NET/IB : Got completion from peer with status=4 opcode=1 len=0", "pci_access_control"),
        ("socketFinalizeAccept: wrong type 3 != 4", "different_transports"),
        ("Failed to CUDA calloc 6291456 bytes", "out_of_memory"),
        ("socketStartConnect: Connect to 172.17.0.2<38847> failed : aborted", "network_interface"),
        ("Call to ibv_create_cq failed with error Cannot allocate memory", "network_interface"),
        ("NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129", "slow_link"),
    ],
)
def test_warnings_of_nccl_are_causes(warning, cause):
    (first,) = found_in(f"node-0:1:2 [0] misc/x.cc:1 NCCL WARN {warning}\n").verdict
    assert first.cause == cause


def test_a_bridge_of_docker_is_named():
    text = "a:1:2 [0] x.cc:1 NCCL WARN Connect to 172.17.0.2<3> failed : Connection refused\n"
    assert "container's bridge" in found_in(text).verdict[0].evidence


def test_peers_over_shared_memory_are_named_with_the_setting():
    text = (
        "node-0:1:2 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.\n"
        "node-0:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"
    )
    (first,) = found_in(text).verdict
    assert (first.cause, first.confidence) == ("no_peer_access", "likely")
    assert "NCCL_P2P_DISABLE is set" in first.evidence
    off = "node-0:1:2 [0] NCCL INFO P2P is disabled between connected GPUs 0 and 1.\n"
    (first,) = found_in(off + text.splitlines()[1] + "\n").verdict
    assert "P2P disabled between GPUs" in first.evidence


def test_paths_across_sockets_and_access_control_are_found_in_a_topology():
    topo = "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n"
    bridges = "ACSCtl: SrcValid+ TransBlk- ReqRedir+\n" * 3
    log = "node-0:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/IPC\n"
    assert ("cross_socket", "possible") in causes(found_in(topo, log))
    assert causes(found_in(topo)) == [("cross_socket", "possible")]
    found = found_in(bridges)
    assert causes(found) == [("pci_access_control", "likely")]
    assert "3 of 3 PCIe bridges" in found.verdict[0].evidence


def test_different_versions_of_nccl_are_found():
    lines = ("a:1:2 [0] NCCL INFO NCCL version 2.18.3+cuda12.2", "NCCL version 2.21.5+cuda12.4")
    text = "\n".join(lines)
    assert causes(found_in(text)) == [("version_mismatch", "likely")]


# Memory ------------------------------------------------------------------------------------------


def oom(asked, total, allocated, free, reserved):
    return (
        f"CUDA out of memory. Tried to allocate {asked} GiB (GPU 0; {total} GiB total capacity; "
        f"{allocated} GiB already allocated; {free} GiB free; {reserved} GiB reserved in total)"
    ).replace("in total)", "in total by PyTorch)")


@for_each(
    ("text", "cause"),
    [
        (oom("2.00", "16.00", "14.50", "0.50", "15.00"), "out_of_memory"),
        (oom("2.00", "16.00", "9.00", "0.50", "15.00"), "fragmentation"),
    ],
)
def test_memory_is_full_or_split(text, cause):
    assert found_in(text).verdict[0].cause == cause


def test_full_memory_is_no_matter_of_blocks_first():
    found = found_in(oom("0.15", "24.00", "22.14", "0.11", "23.03"))
    assert causes(found) == [("out_of_memory", "likely"), ("fragmentation", "possible")]


def test_a_limit_other_than_the_device_is_suggested_where_memory_is_free():
    found = found_in(oom("0.94", "24.00", "6.78", "15.52", "6.85"))
    assert causes(found) == [("out_of_memory", "possible")]


def test_memory_of_other_processes_is_named():
    (first,) = found_in(oom("2.00", "24.00", "4.00", "0.50", "4.20")).verdict
    assert first.cause == "out_of_memory"
    assert "another process" in first.evidence


def test_the_tensor_that_did_not_fit_is_named():
    (first,) = found_in(oom("3.14", "31.75", "28.28", "1.95", "28.28")).verdict
    assert "6,738,415,616 / 8 x 4 bytes" in first.evidence
    assert "of llama2-7b" in first.evidence


# Progress ----------------------------------------------------------------------------------------


def test_steps_that_are_long_now_and_then_are_uneven():
    text = "\n".join(f"step {i}: step_time={9 if i % 10 == 0 else 0.5}s" for i in range(1, 41))
    (first,) = found_in(text).verdict
    assert first.cause == "uneven_steps"
    assert "every 10 steps" in first.evidence


def test_a_log_that_is_slower_than_another_says_how_much():
    fast, slow = (f"  1%|  | 9/99 [00:09<01:30, {rate}]" for rate in ("2.00it/s", "5.00s/it"))
    found = found_in(fast, slow)
    assert causes(found) == [("exposed_communication", "possible")]
    assert "5 s in 1.log and 500 ms in 0.log: 10 times" in found.verdict[0].evidence


def test_a_step_of_a_single_log_is_its_step_time():
    found = found_in("  1%|  | 9/99 [00:09<01:30,  1.50s/it]")
    assert found.step_time_s == 1.5
    assert found.verdict == ()
    assert "verdict: none of the known causes" in found.summary()


# Sizes -------------------------------------------------------------------------------------------


@for_each(
    ("count", "words"),
    [
        (544_997_376, "152,064 x 3,584: embedding or head of qwen2.5-7b"),
        (466_119_168, "consecutive tensors"),
        (262_148_096, "all parameters outside of the blocks (FSDP's root unit) of llama2-7b"),
        (7_615_616_512, "all parameters of qwen2.5-7b"),
        (1_000, ""),
        (123_456_789, ""),
    ],
)
def test_sizes_are_matched_with_the_tensors_of_presets(count, words):
    assert words in in_words(KnownModels().of_elements(count))


def test_a_size_of_many_models_names_some_and_counts_the_others():
    words = in_words(KnownModels().of_elements(4096 * 4096))
    assert words.startswith("4,096 x 4,096: ")
    assert "other models" in words


def test_padding_to_the_ranks_is_allowed_where_they_are_known():
    known = KnownModels({"qwen2.5-7b": "qwen2.5-7b"})
    padded = 7_615_616_512 + 3
    assert in_words(known.of_elements(padded, 8)).endswith("padded to 8 ranks of qwen2.5-7b")
    assert in_words(known.of_elements(padded)) == ""


def test_a_config_json_replaces_the_presets(tmp_path):
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 5000,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "train.log").write_text(waiting(1, num_in=2_560_000) + waiting(2, num_in=2_560_000))
    (first,) = diagnose([tmp_path / "config.json", tmp_path / "train.log"]).verdict
    assert f"5,000 x 512: embedding or head of {tmp_path / 'config.json'}" in first.evidence


def test_a_model_without_a_log_is_refused_in_one_line(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama"}')
    with pytest.raises(
        ScenarioError, match="is a model, whose tensors sizes in a log are compared"
    ):
        diagnose(path)


def test_an_unknown_model_is_refused_in_one_line(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(waiting(0))
    with pytest.raises(ScenarioError) as refused:
        diagnose(path, model="qwen9")
    (line,) = refused.value.problems
    assert line.startswith("qwen9: ")


# The command -------------------------------------------------------------------------------------


def test_a_pipe_and_files_are_one_job(tmp_path, monkeypatch, capsys):
    (tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n")
    piped = tmp_path / "piped"
    piped.write_text(waiting(1) + waiting(2))
    with piped.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert run_command_line(["diagnose", "-", str(tmp_path / "topo.txt"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["source"] == "log"
    assert {row["name"] for row in document["sources"]} == {"standard input", "topo.txt"}
    assert document["verdict"][0]["cause"] == "desynchronised"
    assert document["verdict"][0]["confidence"] == "likely"
    assert document["verdict"][0]["share"] is None


def test_an_empty_pipe_is_refused_without_a_path(tmp_path, monkeypatch, capsys):
    piped = tmp_path / "piped"
    piped.write_text("")
    with piped.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert run_command_line(["diagnose", "-"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("standard input: holds nothing that is read here; allowed are ")
    assert err.count("\n") == 1


def test_a_pipe_is_read_once(capsys):
    assert run_command_line(["diagnose", "-", "-"]) == 2
    assert capsys.readouterr().err == "-: given twice; standard input can be read once.\n"


def test_the_terminal_has_80_columns_and_the_page_has_all(tmp_path, capsys):
    path = tmp_path / "a.log"
    path.write_text(waiting(1) + waiting(2))
    page = tmp_path / "page.html"
    assert run_command_line(["diagnose", str(path), "--html", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "  expected: all ranks call it within 600 s" in lines
    assert "expected: all ranks call it within 600 s" in page.read_text()
