"""Who plays on the leaderboard: rules that others published, and programs of anybody's."""

import re
import sys
from math import nan

import pytest
from for_each import for_each
from leaderboard_points import LEFT_OUT, POINTS, SHOWN, named

from benchmarks.leaderboard import __main__ as command
from benchmarks.leaderboard import page
from benchmarks.leaderboard.adapters import (
    ADAPTERS,
    AdapterError,
    Answer,
    Program,
    astra_sim,
    calculon,
    checked,
    nccl_tuner,
)
from benchmarks.leaderboard.folds import Asked, folds
from benchmarks.leaderboard.points import question


def asked_of(*questions, shown=()):
    return Asked("calibrated", "a fold", tuple(shown), tuple(question(one) for one in questions))


@for_each("name", list(ADAPTERS))
def test_an_entrant_answers_in_order_with_times(name):
    (fold,) = [one for one in folds(POINTS.points, "calibrated") if one.name == "ptddp-v100"]
    answers = checked(ADAPTERS[name](), fold.asked())
    measured = [point["measured_s"] for point in fold.left_out]
    assert all(0.5 < a.seconds / m < 2 for a, m in zip(answers, measured, strict=True))


def test_linear_scaling_grows_the_fewest_ranks_that_are_shown():
    (answer,) = ADAPTERS["linear"]().answers(asked_of(LEFT_OUT, shown=[SHOWN]))
    per_rank = SHOWN["samples"] / SHOWN["measured_s"] / 4
    assert answer.seconds == pytest.approx(LEFT_OUT["samples"] / (per_rank * 8))
    (alone,) = ADAPTERS["linear"]().answers(asked_of(LEFT_OUT))
    assert alone.seconds == LEFT_OUT["micro_step_s"] * LEFT_OUT["grad_accum"]


@for_each(
    ("n", "name", "seconds"),
    [
        (8, "ring", 889015e-9),
        (64, "ring", 1110439e-9),
        (256, "ring", 1506541e-9),
        (8, "halving", 881007e-9),
        (64, "halving", 996382e-9),
        (1024, "halving", 1019036e-9),
    ],
)
def test_collectives_are_those_that_astra_sim_itself_answers(n, name, seconds):
    """25e6 bytes through a switch, 500 ns and 50e9 bytes/s a link, which its program rounds."""
    way = {"ring": astra_sim.ring, "halving": astra_sim.halving_doubling}[name]
    assert way("all_reduce", 25e6, n, 2, 500e-9, 50e9) == pytest.approx(seconds, rel=3e-4)


def test_a_ring_without_a_switch_is_the_closed_form():
    exact = 2 * 7 * (500e-9 + 25e6 / 8 / 50e9)
    assert astra_sim.ring("all_reduce", 25e6, 8, 1, 500e-9, 50e9) == pytest.approx(exact)


H100 = {**LEFT_OUT, "device": "h100-sxm5-80gb", "peer": "nvlink", "ranks_per_node": 8}
H100 |= {"nodes": 1, "ranks": 8, "intra_bandwidth": 450e9, "inter_bandwidth": 400e9}


def bus_bandwidth(point, name, nbytes):
    rounds = (2 if name == "all_reduce" else 1) * (point["ranks"] - 1) / point["ranks"]
    return rounds * nbytes / nccl_tuner.collective(point, name, nbytes) / 1e9


def test_figures_of_nccls_tuner():
    """476 GB/s with NVLS on eight H100, as its comments have it; a ring between nodes by hand."""
    assert bus_bandwidth(H100, "all_reduce", 2**40) == pytest.approx(476, rel=1e-3)
    ten = {**H100, "nodes": 10, "ranks": 80}
    assert bus_bandwidth(ten, "all_gather", 2**40) == pytest.approx(0.96 * 400, rel=0.05)
    # a ring of LL128: 14 us, 70 steps inside nodes of 1.9 us and 9 between of 4 us
    nbytes, low = 2**17, 14 + 70 * 1.9 + 9 * 4.0
    by_hand = low * 1e-6 + nbytes * 79 / 80 / min(0.92 * 370e9, 16 * 36.7e9)
    ways = nccl_tuner.Ways(ten, "all_gather", nbytes, nccl_tuner.HOPPER)
    assert ways.ring(1) == pytest.approx(by_hand)
    # a tree of LL on one node: 7 hops up, 7 down, and the correction of 64 KiB
    ways = nccl_tuner.Ways(H100, "all_reduce", 2**16, nccl_tuner.HOPPER)
    by_hand = (6.8 + 14 * 0.6) * 1e-6 + 2**16 / (0.5 * 0.6 * 370e9 / 3.8)
    assert ways.tree(0) == pytest.approx(by_hand)


def test_nccls_tuner_has_no_time_for_other_devices_and_calls():
    assert nccl_tuner.collective({**H100, "device": "mi300x-192gb"}, "all_reduce", 1e6) is None
    assert nccl_tuner.collective(H100, "all_to_all", 1e6) is None
    assert nccl_tuner.collective({**H100, "ranks": 1}, "all_reduce", 1e6) is None


def test_two_dimensions_send_less_between_nodes():
    point = {**LEFT_OUT, "ranks_per_node": 4, "intra_bandwidth": 1e12, "inter_bandwidth": 4e10}
    point |= {"intra_latency_s": 0.0, "inter_latency_s": 0.0}
    whole = astra_sim.collective(point, "all_reduce", 8e9)
    assert whole == pytest.approx(2 * 3 / 4 * 8e9 / 1e12 + 8e9 / 4 / 1e10)
    assert astra_sim.collective(point, "broadcast", 8e9) is None


def test_buckets_of_astra_sims_rules_queue_behind_one_another():
    point = {**LEFT_OUT, "gradient_bytes": 100, "bucket_bytes": 25, "grad_accum": 1, "options": {}}
    # Forward 1 s; buckets are ready after 1.5, 2, 2.5 and 3 s.
    slow = astra_sim.replicated(point, 3.0, lambda name, nbytes: 2.0)
    assert slow == pytest.approx(1.5 + 4 * 2.0)
    fast = astra_sim.replicated(point, 3.0, lambda name, nbytes: 0.1)
    assert fast == pytest.approx(3.1)
    bare = {**point, "options": {"overlap": False}}
    assert astra_sim.replicated(bare, 3.0, lambda name, nbytes: 0.1) == pytest.approx(3.4)


def test_a_network_of_calculons_has_latency_factor_and_efficiency():
    """Its published A100 system, 8 GPUs: 10 us and 2 S (1 - 1/8) at 0.65 of 300e9 bytes/s."""
    box = {**SHOWN, "ranks": 8, "ranks_per_node": 8, "peer": "nvlink", "device": "a100-sxm4-80gb"}
    box |= {"intra_bandwidth": 300e9}
    seconds = calculon.operation(box, "all_reduce", 1e9, calculon.EFFICIENCY)
    assert seconds == pytest.approx(10e-6 + 2e9 * 7 / 8 / (0.65 * 300e9))
    h100 = {**box, "device": "h100-sxm5-80gb", "intra_bandwidth": 450e9}
    seconds = calculon.operation(h100, "all_reduce", 1e9, calculon.EFFICIENCY)
    assert seconds == pytest.approx(10e-6 + 1e9 * 9 / 8 / (0.65 * 450e9))
    assert calculon.operation(box, "all_to_all", 1e9, calculon.EFFICIENCY) is None


def test_what_calculon_cannot_hide_is_the_last_block_and_what_does_not_fit():
    point = {**SHOWN, "nodes": 1, "blocks": 4, "options": {}}
    assert calculon.exposed(point, 0.1, 4.0) == pytest.approx(0.1 + 3 * 0.1 * 0.15)
    assert calculon.exposed(point, 2.0, 4.0) == pytest.approx(2 + 3 * (2 - 1) + 0.15)
    bare = {**point, "options": {"overlap": False}}
    assert calculon.exposed(bare, 2.0, 4.0) == 8.0


@for_each("name", ["calculon", "astra-sim"])
def test_shares_of_links_are_found_again(name):
    """Times that the rules make at a share of 0.4 are answered by them."""
    entrant = ADAPTERS[name]()
    tables = [one for one in named("nccl-tests/nccl_dgx-a100") if one["collective"] == "all_reduce"]
    made = [
        {**one, "role": "calibration", "measured_s": entrant.time(one, (0.4, 0.4), ())}
        for one in tables
    ]
    answers = entrant.answers(asked_of(*made, shown=made))
    for answer, point in zip(answers, made, strict=True):
        assert answer.seconds == pytest.approx(point["measured_s"], rel=0.06)  # steps of the search


# Programs ----------------------------------------------------------------------------------------


def program(tmp_path, text, limit=20.0):
    (tmp_path / "mine.py").write_text(text)
    return Program("mine", [sys.executable, str(tmp_path / "mine.py")], limit)


def test_a_program_reads_json_and_prints_times(tmp_path):
    text = """
        import json, sys
        asked = json.load(sys.stdin)
        seen = {point["measured_s"] for point in asked["shown"]}
        for point in asked["questions"]:
            assert "measured_s" not in point and "role" not in point
            print(max(seen) * point["ranks"], 0.1, 99) if point["ranks"] > 4 else print("-")
    """
    mine = program(tmp_path, re.sub(r"(?m)^        ", "", text))
    asked = asked_of(LEFT_OUT, {**LEFT_OUT, "ranks": 2}, shown=[SHOWN])
    assert checked(mine, asked) == [Answer(4.0, 0.1, 99.0), None]


@for_each(
    ("text", "said"),
    [
        ("print('about an hour')", "line 1: 'about an hour' is not a time in seconds"),
        ("print(1, 2)", "line 1: '1 2' is not a time"),
        ("print(-1)", "a#1: answered -1; a time must be above 0, inside its interval"),
        ("print('nan')", "a#1: answered nan; a time must be above 0"),
        ("print(1, 2, 3)", "a#1: answered 1 2 3; a time must be above 0, inside its interval"),
        ("", "fold a fold: gave 0 answers to 1 questions"),
        ("raise SystemExit('no idea')", "fold a fold: ended with 1: no idea"),
    ],
)
def test_a_program_that_prints_nonsense_says_why(tmp_path_factory, text, said):
    mine = program(tmp_path_factory.mktemp("mine"), text)
    with pytest.raises(AdapterError, match=f"^{re.escape(said)}"):
        checked(mine, asked_of(LEFT_OUT))


def test_a_program_that_hangs_or_is_not_there_says_so(tmp_path):
    mine = program(tmp_path, "import time; time.sleep(60)", limit=0.5)
    with pytest.raises(AdapterError, match=r"had not answered after 0.5 s; allow more by --limit"):
        checked(mine, asked_of(LEFT_OUT))
    with pytest.raises(AdapterError, match=r"^nowhere: cannot be run: No such file"):
        checked(Program("mine", ["nowhere"]), asked_of(LEFT_OUT))
    assert not Answer(1.0, nan, 2.0).is_sound


def test_a_program_that_fails_is_a_row_with_its_reason(tmp_path, capsys, monkeypatch):
    few = POINTS._replace(points=tuple(named("torch-ddp/ptddp-v100_resnet50")))
    monkeypatch.setattr(command, "load", lambda: few)
    bad = f"{sys.executable} -c \"print('soon')\""
    given = ["--program", bad, "--name", "slow coach", "--rule", "calibrated"]
    assert command.main(given) == 1
    said = capsys.readouterr().out
    assert "slow coach: line 1: 'soon' is not a time in seconds" in said
    assert "linear scaling" in said


def test_the_example_of_the_page_is_run(tmp_path, capsys, monkeypatch):
    guide = page.GUIDE.read_text()
    assert page.EXAMPLE.read_text().strip() in guide
    (line,) = re.findall(r"(?m)^python -m benchmarks.leaderboard (--program .*)$", guide)
    few = POINTS._replace(points=tuple(named("torch-ddp/ptddp-v100_resnet50")))
    monkeypatch.setattr(command, "load", lambda: few)
    monkeypatch.chdir(page.ROOT)
    before = page.PAGE.read_bytes()
    found = command.shlex.split(line.replace("python ", f"{sys.executable} ", 1))
    assert command.main([*found, "--rule", "calibrated"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "mine" in line]
    assert "8 of 8" in row
    assert "100 %" in row  # its intervals are wide
    assert page.PAGE.read_bytes() == before
