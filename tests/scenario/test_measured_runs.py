"""``measured:`` in scenarios: what it may say, and what is refused."""

import pytest
from for_each import for_each
from small_scenario import CLUSTER

from simdp.scenario import checked
from simdp.units import format_quantity

SMALL = {"set": {"cluster.world_size": 2}, "step_time": "97 ms"}
LARGE = {"throughput": "620 samples/s", "role": "predicted"}


def measured(*points, **more):
    return {"source": "a bench", "points": list(points), **more}


def table(**more):
    return {"collective": "all_reduce", "times": {"1 MiB": "50 us", "2 MiB": "70 us"}, **more}


# What it says ------------------------------------------------------------------------------------


def test_points_and_tables_become_scenarios_without_numbers(load):
    scenario = load(measured=measured(SMALL, LARGE, collectives=[table()]))
    points, tables = scenario.measured_scenarios()
    assert [point.cluster.world_size for point in points] == [2, 4]
    assert [one.cluster.world_size for one in tables] == [4]
    assert not any(one.numerics or one.sweep or one.measured for one in points + tables)
    assert scenario.numerics


def test_a_scenario_without_measurements_has_no_points(load):
    assert load().measured_scenarios() == ([], [])


def test_a_throughput_is_a_step_time_by_the_samples_of_a_step(load):
    slow, fast = load(measured=measured(SMALL, LARGE)).measured.points
    assert slow.seconds(64) == 0.097
    assert fast.seconds(62) == 0.1


def test_what_is_measured_survives_being_written_and_read(load, tmp_path):
    known = {
        "data": "x",
        "residual": "1.3 %",
        "intervals": {"cluster.link.alpha": ["1 us", "9 us"]},
    }
    scenario = load(measured=measured(SMALL, noise="2 %", collectives=[table()], calibration=known))
    raw = scenario.resolved()
    assert raw["measured"]["noise"] == "2 %"
    assert raw["measured"]["collectives"][0]["times"] == {"1 MiB": "50 us", "2 MiB": "70 us"}
    again = checked(raw, tmp_path)
    assert again == scenario
    assert len(again.measured_scenarios()[0]) == 1


@for_each(
    ("calibration", "first"),
    [("none", "ppp"), ("every_second", "cpc"), ("all", "ccc")],
)
def test_a_table_says_which_sizes_were_calibrated(calibration, first, load):
    times = {"4 KiB": "9 us", "1 KiB": "7 us", "2 KiB": "8 us"}
    rows = table(times=times, calibration=calibration)
    (found,) = load(measured=measured(collectives=[rows])).measured.collectives
    assert [format_quantity(nbytes, "data size") for nbytes, _ in found.times] == [
        "1 KiB",
        "2 KiB",
        "4 KiB",
    ]
    assert "".join(role[0] for role in found.roles()) == first


def test_points_of_a_sweep_leave_the_measurements_out(load):
    scenario = load(measured=measured(SMALL), sweep={"cluster.world_size": [1, 2]})
    assert [point.measured for _, point in scenario.points()] == [None, None]


def test_a_point_may_name_its_machine(load):
    cluster = {"world_size": 2, "machine": "dgx-1"}
    points = [SMALL, {"set": {"cluster.machine": "dgx-a100"}, "step_time": "1 s"}]
    found, _ = load(cluster=cluster, measured=measured(*points)).measured_scenarios()
    assert [point.cluster.machine for point in found] == ["dgx-1", "dgx-a100"]
    assert found[0].cluster.device != found[1].cluster.device


def test_what_was_measured_is_not_of_a_scenario_with_other_keys(load):
    said = measured({"step_time": "40 ms"}, SMALL)
    assert load(measured=said).measured is not None
    assert load({"cluster.world_size": 2}, measured=said).measured is None
    assert load({"measured.source": "another bench"}, measured=said).measured is not None


def test_a_straggler_is_idle_where_a_point_lacks_its_rank(load):
    stragglers = [{"kind": "slow_rank", "rank": 3, "factor": 2}]
    cluster = {**CLUSTER, "stragglers": stragglers}
    found, _ = load(cluster=cluster, measured=measured(SMALL, LARGE)).measured_scenarios()
    assert len(found) == 2


def test_replicates_may_differ_by_as_much_as_the_noise(load):
    twice = [SMALL, {**SMALL, "step_time": "98 ms"}]
    assert len(load(measured=measured(*twice, noise="2 %")).measured.points) == 2


# What is refused ---------------------------------------------------------------------------------

P0, T0 = "measured.points.0", "measured.collectives.0"


@for_each(
    ("point", "line"),
    [
        (
            {"step_time": "97 GB"},
            f"{P0}.step_time: '97 GB' is not a time; write for example \"5 us\".",
        ),
        (
            {"throughput": 620},
            f'{P0}.throughput: 620 has no unit; write for example "620 samples/s".',
        ),
        (
            {"throughput": "620 GB/s"},
            f"{P0}.throughput: '620 GB/s' is not a throughput; write for example "
            '"620 samples/s".',
        ),
        (
            {"step_time": "0 s"},
            f"{P0}.step_time: 0 s is out of range; it must be > 0 s and finite.",
        ),
        (
            {"step_time": "1 s", "role": "guessed"},
            f"{P0}.role: 'guessed' is not allowed; known: 'calibration' or 'predicted'.",
        ),
        (
            {"step_time": "1 s", "throughput": "1 samples/s"},
            f"{P0}: both of step_time and throughput given; give one, such as step_time: 97 ms.",
        ),
        (
            {},
            f"{P0}: neither of step_time and throughput given; give one, such as step_time: 97 ms.",
        ),
        (
            {"step_time": "40 ms", "exposed_sync": "50 ms"},
            f"{P0}: exposed_sync of 50 ms is no part of a step of 40 ms; correct one of them.",
        ),
        (
            {"step_time": "1 s", "set": {"cluster.world_sise": 2}},
            f"{P0}.set: cluster: unknown key 'world_sise'",
        ),
        (
            {"step_time": "1 s", "set": {"cluster.devices_per_node": 3}},
            f"{P0}.set: cluster: world_size 4 is neither one partly used node of 3 devices",
        ),
        (
            {"step_time": "1 s", "set": {"cluster": 5}},
            f"{P0}.set: cluster: 5 is not a mapping of keys to values.",
        ),
        (
            {"step_time": "1 s", "set": {"cluster.world_size.x": 3}},
            f"{P0}.set.cluster.world_size.x: cluster.world_size is 4, which has no keys inside.",
        ),
        (
            {"step_time": "1 s", "set": {"sweep.cluster.world_size": [3]}},
            f"{P0}.set.sweep.cluster.world_size: set a key of cluster, workload, ...",
        ),
    ],
)
def test_a_point_that_cannot_be_is_refused(point, line, refuse):
    (found,) = refuse(measured=measured(point))
    assert found.startswith(line)


def test_every_point_that_does_not_build_is_named(refuse):
    wrong = {"set": {"workload.microbatch": 0}, "step_time": "1 s"}
    lines = refuse(measured=measured(wrong, SMALL, wrong))
    said = "workload.microbatch: 0 is out of range; it must be >= 1."
    assert lines == [f"measured.points.{number}.set: {said}" for number in (0, 2)]


def test_points_that_contradict_each_other_are_refused(refuse):
    slower = {"set": {"cluster.world_size": 4}, "step_time": "50 ms"}
    assert refuse(measured=measured({"step_time": "40 ms"}, slower, noise="5 %")) == [
        "measured.points.1: contradicts points.0: 50 ms and 40 ms per step with the same settings; "
        "keep one, or raise noise."
    ]


def test_a_throughput_can_contradict_a_step_time(refuse):
    points = {"step_time": "40 ms"}, {"throughput": "32 samples/s"}  # 32 samples make a step
    (line,) = refuse(measured=measured(*points))
    assert line.startswith("measured.points.1: contradicts points.0: 1000 ms and 40 ms")


def test_a_point_cannot_be_excluded_as_well(refuse):
    left_out = [{"set": SMALL["set"], "reason": "a shared machine"}]
    (line,) = refuse(measured=measured(LARGE, SMALL, excluded=left_out))
    assert line == "measured: points.1 is excluded as well; keep it in one of the lists."


def test_an_excluded_point_needs_a_reason(refuse):
    (line,) = refuse(measured=measured(SMALL, excluded=[{"set": {}}]))
    assert line == "measured.excluded.0.reason: is required but was not given; add it."


def test_measurements_without_any_are_refused(refuse):
    (line,) = refuse(measured={"source": "x"})
    assert line == (
        "measured: has no points, no collectives and no memory; add points: [{set: ..., ...}]."
    )


@pytest.mark.parametrize(
    ("given", "how_many"),
    [({}, "none"), ({"allocated": "1 GB", "out_of_memory": True}, "more than one")],
)
def test_a_peak_of_memory_is_one_figure(refuse, given, how_many):
    (line,) = refuse(measured={"source": "x", "memory": [given]})
    assert line == (
        f"measured.memory.0: {how_many} of allocated, reserved and out_of_memory given; give one, "
        "such as allocated: 47.36 GB."
    )


def test_a_source_is_needed(refuse):
    (line,) = refuse(measured={"points": [SMALL]})
    assert line == "measured.source: is required but was not given; add it."


@for_each(
    ("text", "said"), [("0.02", "'0.02'"), (0.02, "0.02"), ("-1 %", "'-1 %'"), ("2 s", "'2 s'")]
)
def test_noise_is_a_share_with_its_sign(text, said, refuse):
    (line,) = refuse(measured=measured(SMALL, noise=text))
    assert line == (
        f'measured.noise: {said} is not a share of 0 % or more; write for example "2 %".'
    )


@for_each(
    ("change", "line"),
    [
        ({"collective": "all_reduse"}, f"{T0}.collective: unknown collective 'all_reduse'"),
        (
            {"times": {}},
            f"{T0}.times: {{}} is not a mapping of sizes to times, such as {{1 MiB: 50 us}}.",
        ),
        (
            {"times": {"1 MiB": "50 B"}},
            f"{T0}.times: at 1 MiB: '50 B' is not a time; write for example \"5 us\".",
        ),
        (
            {"times": {1024: "50 us"}},
            f'{T0}.times: at 1024: 1024 has no unit; write for example "25 MiB".',
        ),
        (
            {"times": {"1 MiB": "0 s"}},
            f"{T0}.times: at 1 MiB: 0 s is out of range; it must be > 0 s and finite.",
        ),
        (
            {"times": {"1.5 B": "1 s"}},
            f"{T0}.times: 1.5 B is not a whole number of bytes, 1 or more.",
        ),
        (
            {"times": {"1 MiB": "1 s", "1024 KiB": "2 s"}},
            f"{T0}.times: 1024 KiB is there twice, with different times; keep one.",
        ),
        (
            {"times": {}, "algbw": {"1 MiB": "50 us"}},
            f"{T0}.times: {{}} is not a mapping of sizes to times, such as {{1 MiB: 50 us}}.",
        ),
        (
            {"algbw": {"1 MiB": "20 GB/s"}},
            f"{T0}: both of times and algbw given; give one, such as times: {{1 MiB: 50 us}}.",
        ),
        (
            {"calibration": "half"},
            f"{T0}.calibration: 'half' is not allowed; known: 'none', 'every_second' or 'all'.",
        ),
        (
            {"set": {"cluster.world_size": 0}},
            f"{T0}.set: cluster.world_size: 0 is out of range; it must be >= 1.",
        ),
    ],
)
def test_a_table_that_cannot_be_is_refused(change, line, refuse):
    found = refuse(measured=measured(collectives=[table(**change)]))
    assert found[0].startswith(line)


@for_each(
    ("algbw", "said"),
    [
        (None, "{place}: neither of times and algbw given; give one"),
        ({}, "{place}.algbw: {{}} is not a mapping of sizes to bandwidths, such as"),
        ({"1 MiB": "50 us"}, "{place}.algbw: at 1 MiB: '50 us' is not a bandwidth; write"),
        ({"1 MiB": "0 B/s"}, "{place}.algbw: at 1 MiB: 0 B/s is out of range; it must be > 0"),
        (
            {"1 MiB": "1 GB/s", "1024 KiB": "2 GB/s"},
            "{place}.algbw: 1024 KiB is there twice, with different bandwidths; keep one.",
        ),
    ],
)
def test_bandwidths_that_cannot_be_are_refused(algbw, said, refuse):
    given = {"collective": "all_reduce", **({} if algbw is None else {"algbw": algbw})}
    (line,) = refuse(measured=measured(collectives=[given]))
    assert line.startswith(said.format(place=T0))


def test_a_table_of_bandwidths_is_one_of_times(load, tmp_path):
    rates = {"collective": "all_reduce", "algbw": {"2 MB": "20 GB/s", "1 MB": "10 GB/s"}}
    scenario = load(measured=measured(collectives=[rates]))
    assert scenario.measured.collectives[0].times == ((10**6, 1e-4), (2 * 10**6, 1e-4))
    raw = scenario.resolved()
    assert raw["measured"]["collectives"][0]["times"] == {"1 MB": "100 us", "2 MB": "100 us"}
    assert checked(raw, tmp_path) == scenario
