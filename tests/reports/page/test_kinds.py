"""Pages of all kinds but studies: the figures are the terminal's, and the words come first."""

import dataclasses
from io import BytesIO
from pathlib import Path

import pytest
from for_each import for_each
from small_scenario import CLUSTER
from trace_maker import job as traces_of

import simdp
from simdp.reports import difference_table, job_table, sweep_table
from simdp.reports import validation as validation_words
from simdp.reports.charts.chart import Chart
from simdp.reports.figures import (
    interval,
    large_number,
    long_time,
    nbytes,
    number,
    percent,
    seconds,
    speedup,
)
from simdp.reports.page import KINDS, page_of, write
from simdp.reports.sections import Ledger, Summary, Table, Verdict
from simdp.results.audit import (
    AuditReport,
    Check,
    Experiment,
    Finding,
    SampleRow,
    TensorRow,
)
from simdp.results.comparison import ComparedPoint, Comparison
from simdp.results.job import BADPUT, JobRuns, JobStretch, JobStudy, Spread
from simdp.results.metrics import Metrics
from simdp.results.plan import Option, PlanResult
from simdp.results.result import Study
from simdp.results.validation import StepComparison, Validation
from simdp.scenario import checked

METRICS = Metrics(
    **{
        "step_time_s": 0.1,
        "compute_s": 0.08,
        "update_s": 0.005,
        "exposed_comm_s": 0.01,
        "wait_s": 0.005,
        "other_s": 0.0,
        "throughput_samples_per_s": 1000.0,
        "bytes_sent_per_rank": [1e9, 2e9],
        "fits_memory": True,
        "loss": None,
    }
)
SCENARIO = {"name": "box", "seed": 3, "cluster": CLUSTER, "strategy": "ddp"}


def comparison():
    slow = dataclasses.replace(METRICS, throughput_samples_per_s=800.0, fits_memory=False)
    return Comparison(
        "0.1.0",
        SCENARIO,
        {"strategy": ["ddp", "fsdp", "single"]},
        [
            ComparedPoint({"strategy": "ddp"}, {}, 4, METRICS, 5e9, 40e9),
            ComparedPoint({"strategy": "fsdp"}, {}, 4, slow, 50e9, 40e9),
            ComparedPoint({"strategy": "single"}, problems=["it has four devices."]),
        ],
        ["global_batch: 32 at every point."],
    )


def spread(value):
    return Spread(value, value, 1.1 * value, 1.2 * value)


def job(**changes):
    badput = dict.fromkeys(BADPUT, 0.0) | {"startup": 3600.0, "lost_work": 7200.0}
    assumed = {
        "num_steps": 1e5,
        "step_s": 1.0,
        "num_nodes": 4,
        "interval_s": 600.0,
        "interval_steps": 600,
        "blocking_s": 2.0,
        "background_s": 0.0,
        "load_s": 60.0,
        "price_date": None,
        "recovery": {"kind": "restart", "restart": "5 min"},
    }
    strip = [
        JobStretch("startup", 0.0, 3600.0),
        JobStretch("training", 3600.0, 43200.0),
        JobStretch("lost", 43200.0, 50400.0),
        JobStretch("training", 50400.0, 86400.0),
    ]
    finishes = [86400.0 + 100 * number for number in range(20)]
    one = JobRuns(
        {},
        20,
        spread(0.9),
        spread(0.9),
        spread(86400.0),
        spread(1e4),
        None,
        3.0,
        28800.0,
        badput,
        0.8,
        (8e4, 9e4),
        assumed,
        finishes,
        strip,
    )
    return JobStudy("0.1.0", SCENARIO, 1e5, [dataclasses.replace(one, **changes)])


def validation():
    def step(cluster, n, measured, simulated, role="predicted"):
        low, high = 0.9 * simulated, 1.1 * simulated
        point = {"cluster.world_size": n}
        of = ("box", cluster, point, n, role, measured, simulated, low, high, None)
        return StepComparison(*of, 32.0, None, simulated)

    points = (
        step("a", 8, 0.1, 0.105),
        step("a", 16, 0.12, 0.2),
        step("b", 8, 0.05, 0.05, "calibration"),
    )
    return Validation("0.1.0", points, (), {"a": 0.02, "b": 0.02}, {"box": "somebody\nmeasured"})


def plan(**changes):
    options = tuple(
        Option(
            {"cluster.world_size": n},
            1.0 / n,
            86400.0 / n,
            1000.0 * n,
            None,
            1e9 / n,
            0.9 / n,
            1.2 / n,
            why=f"{n} of them",
            limit="compute",
            shares={"compute": 0.8 / n, "exposed_comm": 0.2 / n},
            file=f"option-{n}.yaml",
        )
        for n in (4, 8)
    )
    made = PlanResult(
        "0.1.0",
        SCENARIO,
        "cheapest",
        {"deadline": 86400.0},
        None,
        {"cluster.world_size": [4, 8]},
        options[:1],
        options,
        num_points=2,
        num_simulated=2,
        pruned={"memory": 3},
    )
    return dataclasses.replace(made, **changes)


def difference():
    def study(latency):
        raw = {
            "name": "box",
            "cluster": {**CLUSTER, "link": {"alpha": latency, "bandwidth": "25 GB/s"}},
            "workload": {
                "model": {"kind": "mlp", "widths": [4, 3]},
                "dataset": {"kind": "regression", "num_samples": 64},
                "microbatch": 8,
                "steps": 3,
            },
            "numerics": False,
        }
        return simdp.sweep(checked(raw, Path()))

    return simdp.compare_results(study("5 us"), study("50 us"))


def diagnosis():
    return simdp.diagnose(traces_of([[0, 0.2, 0, 0]] * 5), machine="dgx-a100")


def ledger(world_size, order, batch, epoch=1, step=1):
    """The rows of one epoch: ranks take every n-th sample of a batch."""
    return [
        SampleRow(world_size, rank, step + start // batch, epoch, tuple(part[rank::world_size]))
        for start in range(0, len(order), batch)
        for part in [order[start : start + batch]]
        for rank in range(world_size)
    ]


def audit(**changes):
    """One rank misses 8 and 9 of ten samples in the first epoch; two ranks see 0 and 1 again."""
    loss = Finding(
        "loss_mean_of_rank_means",
        False,
        "folder/train.py",
        88,
        1,
        "norm.weight",
        4e-3,
        "weighted by tokens, 1 and 2 ranks agree to 2e-12",
        "divide by the tokens of all ranks",
        text="the loss is a mean of each rank's mean; tokens per rank 61 to 412",
    )
    padding = Finding(
        "sampler_padding_duplicates", True, "folder/train.py", 71, None, None, None, "2 samples"
    )
    padded = [*range(10), 0, 1]
    made = AuditReport(
        "train.py",
        (1, 2),
        5,
        (loss, padding),
        2,
        2,
        checks=(Check("gradients", "differ", "first at step 1"), Check("replicas", "ok", "equal")),
        experiments=(
            Experiment("loss_mean_of_rank_means", "weighted by tokens", 4e-3, 2e-12, 3e-7),
            Experiment("clip_before_average", "clipped once", 4e-3, 3e-3, 3e-7),
        ),
        tensors=(TensorRow("gradient", "norm.weight", 1, (1, 2), 4e-3, 3e-7),),
        ledger=(
            *ledger(1, range(8), 4),
            *ledger(1, range(8), 4, 2, 3),
            *ledger(2, padded, 4),
            *ledger(2, padded[:8], 4, 2, 4),
        ),
        notes=("a step has 4 samples",),
        batch=4,
        samples=10,
    )
    return dataclasses.replace(made, **changes)


MADE = {
    "audit": audit,
    "comparison": comparison,
    "diagnosis": diagnosis,
    "difference": difference,
    "job": job,
    "plan": plan,
    "validation": validation,
}


def sections(page, kind):
    return [one for one in page.sections if isinstance(one, kind)]


def titled(page, title):
    (found,) = (one for one in page.sections if one.title == title)
    return found


def texts(table):
    return [[cell.strip() for cell in row] for row in table.rows]


@pytest.fixture(scope="module", params=list(MADE))
def document(request):
    return MADE[request.param]()


def test_all_kinds_are_here():
    assert {type(make()) for make in MADE.values()} | {Study} == set(KINDS)


def test_the_verdict_comes_first_and_says_something(document):
    first = page_of(document).sections[0]
    assert isinstance(first, Verdict)
    assert first.lines[0]


def test_it_is_one_small_file_and_the_same_twice(document):
    written = [BytesIO(), BytesIO()]
    for stream in written:
        write(document, stream)
    first, second = (stream.getvalue() for stream in written)
    assert first == second
    assert len(first) < 3e6


def test_every_table_has_a_cell_for_every_column_and_charts_equal_lengths(document):
    page = page_of(document)
    for table in sections(page, Table):
        assert {len(row) for row in table.rows} == {len(table.heads)}
    for chart in sections(page, Chart):
        for series in chart.series:
            assert len(series.x) == len(series.y) > 0
            assert {len(series.low), len(series.high)} <= {0, len(series.x)}


def test_a_comparison_has_the_terminals_cells_and_warns_of_what_cannot_run():
    found = comparison()
    page = page_of(found)
    shown = sweep_table.grid(found)
    table = titled(page, "The points")
    assert table.heads == shown.heads
    assert texts(table) == [[cell.strip() for cell in row] for row in shown.rows]
    assert page.sections[0].lines[0] == (
        "ddp trains most samples per second: 25.0 % more than fsdp."
    )
    assert titled(page, "Warnings").lines == [
        "fsdp does not fit: it needs 50 GB of a device with 40 GB.",
        "single cannot run: it has four devices.",
    ]
    steps = titled(page, "Where a step's time goes")
    assert sum(series.y[0] for series in steps.series) == pytest.approx(100.0)


def test_a_difference_says_the_terminals_words():
    found = difference()
    page = page_of(found)
    assert page.about == difference_table.headline(found)
    assert page.sections[0].lines == [line.strip() for line in difference_table.words(found)[1:]]
    bars = titled(page, "Where a step's time goes")
    (point,) = found.points
    scale = 1e6 if "[us]" in bars.y.label else 1e3
    for side, step in ((0, point.a_s), (1, point.b_s)):
        assert sum(series.y[side] for series in bars.series) == pytest.approx(scale * step)


def test_a_job_shows_when_it_is_done_what_is_lost_and_what_happens_when():
    study = job()
    page = page_of(study)
    assert page.sections[0].level == "warning"  # one of five misses the deadline
    assert texts(titled(page, "Where the time goes")) == job_table.parts(study.points[0]).rows
    done = titled(page, "When the runs are done")
    assert (done.series[0].y[0], done.series[0].y[-1]) == (0.0, 100.0)
    assert list(done.series[0].y[1:3]) == [5.0, 10.0]
    assert done.series[0].x[1:3] == [86400 / 3600, pytest.approx(86500 / 3600)]
    assert done.series[0].x[-1] == pytest.approx(max(study.points[0].finishes) / 3600)
    assert done.marks[0].text == "deadline, 27.78 h"
    lost = {one.name: one.y for one in titled(page, "What is lost, by cause").series}
    assert lost["lost work"] == [pytest.approx(100 * 7200 / 86400)]
    strip = {one.name: one.y for one in titled(page, "One run: what holds it up when").series}
    assert sum(strip["start"]) / 240 == pytest.approx(100 * 3600 / 86400, abs=0.01)
    assert sum(strip["training that was lost"]) / 240 == pytest.approx(100 * 7200 / 86400, abs=0.01)
    command = titled(page, "How to reproduce it").source
    assert command.startswith("python -m simdp job box.yaml --runs 20 --until '100000 s'")


def test_a_validation_has_intervals_and_what_is_too_far_off():
    found = validation()
    page = page_of(found)
    chart = titled(page, "Simulated against measured steps")
    series = {one.name: one for one in chart.series}
    assert list(series["a"].x) == [pytest.approx(100), pytest.approx(120)]
    assert list(series["a"].low) == [pytest.approx(94.5), pytest.approx(180)]
    assert titled(page, "Warnings").lines[0].startswith("a: steps are 35.8 % off in the mean")
    assert texts(titled(page, "Step times")) == validation_words.summary_rows(found)
    assert len(titled(page, "Every step").rows) == 3
    assert titled(page, "Sources").lines == ["box: somebody measured"]


def test_a_diagnosis_has_its_evidence_its_remedies_and_who_is_late():
    found = diagnosis()
    page = page_of(found, title="traces")
    assert page.title == "traces: why its step takes so long"
    assert page.sections[0].lines[0].startswith("straggler 64.3 % (rank 1): rank 1 comes last")
    tiles = [tile.name for tile in titled(page, "Summary").tiles]
    assert tiles[:2] == ["step time", "ranks"]
    helps = titled(page, "What would help")
    assert [row[2].value for row in helps.rows] == sorted(
        remedy.step_time_s for one in found.verdict for remedy in one.remedies
    )
    late, waits = titled(page, "Who is late, and who waits").series
    assert late.y == [0, pytest.approx(200), 0, 0]
    assert waits.y[1] == 0
    assert len(titled(page, "Ranks").rows) == 4
    parts = titled(page, "Where a step's time goes")
    assert sum(one.y[0] for one in parts.series) == pytest.approx(1e3 * found.step_time_s)


def test_lateness_of_many_ranks_is_a_line():
    found = diagnosis()
    ranks = tuple(dataclasses.replace(found.ranks[0], rank=n, late_s=0.1) for n in range(200))
    page = page_of(dataclasses.replace(found, ranks=ranks))
    chart = titled(page, "Who is late, and who waits")
    assert {one.look for one in chart.series} == {"line"}
    assert chart.series[0].x[-1] == 199


def test_a_plan_shows_the_front_with_intervals_and_a_scenario_for_each_option():
    page = page_of(plan())
    money, memory = (titled(page, f"Time against {of}") for of in ("money", "memory"))
    best, front = money.series
    assert (list(best.x), list(best.y)) == ([4000.0], [pytest.approx(6.0)])
    assert (list(front.low), list(front.high)) == ([pytest.approx(2.7)], [pytest.approx(3.6)])
    assert list(memory.series[1].x) == [0.125]
    assert [list(one.labels) for one in money.series] == [["1: 4 GPUs"], ["2: 8 GPUs"]]
    assert money.x.from_zero
    assert [(mark.text, mark.value, mark.axis) for mark in money.marks] == [("deadline", 24.0, "y")]
    options = titled(page, "What the options set")
    assert options.source == (
        "# option 1: option-4.yaml\ncluster.world_size: 4\n\n"
        "# option 2: option-8.yaml\ncluster.world_size: 8\n"
    )
    assert options.note
    assert [row[2].value for row in titled(page, "The options").rows] == [21600.0, 10800.0]


def test_two_jobs_that_differ_by_noise_alone_get_no_tick():
    first = job(set={"checkpoint.every": "daly"}).points[0]
    later = dataclasses.replace(first, set={"checkpoint.every": "young"}, finish_s=spread(86401.0))
    longer = dataclasses.replace(first, set={"checkpoint.every": "1 h"}, finish_s=spread(9e4))
    swept = {**SCENARIO, "sweep": {"checkpoint.every": ["daly", "young"]}}
    pages = [page_of(JobStudy("0.1.0", swept, None, [first, one])) for one in (later, longer)]
    assert [page.sections[0].level for page in pages] == ["note", "good"]
    assert "no difference beyond the noise" in pages[0].sections[0].lines[0]
    assert "is done first" in pages[1].sections[0].lines[0]


def test_points_that_are_equally_fast_are_no_winners():
    found = comparison()
    noisy = dataclasses.replace(
        found.points[0],
        set={"strategy": "zero1"},
        metrics=dataclasses.replace(METRICS, throughput_samples_per_s=995.0),
    )
    found.points.append(noisy)
    assert page_of(found).sections[0].level == "good"
    for point in (found.points[0], noisy):
        point.step_error_s = 0.01 * METRICS["step_time_s"]
    verdict = page_of(found).sections[0]
    assert verdict.level == "note"
    assert verdict.lines[0] == (
        "ddp and zero1: no difference in samples/s beyond the noise of these steps."
    )
    assert verdict.lines[0] in " ".join(sweep_table.remarks(found))


def test_of_a_long_front_twelve_points_have_names():
    (first,) = plan().best
    many = [dataclasses.replace(first, set={"cluster.world_size": n}) for n in range(4, 44)]
    money = titled(page_of(plan(front=tuple(many))), "Time against money")
    assert [(len(one.x), len(one.labels)) for one in money.series] == [(1, 1), (12, 12), (27, 0)]


def test_a_plan_whose_order_is_not_sure_gets_no_tick_and_claims_no_proof():
    both = plan().options
    sure = page_of(plan(best=both, order="sure: its 90 % interval ends before"))
    unsure = page_of(plan(best=both, order="not sure: its 90 % interval overlaps"))
    assert sure.sections[0].level == "good"
    assert unsure.sections[0].level == "note"
    proofs = [titled(page, "Summary").rows[-1].text for page in (sure, unsure)]
    assert proofs[0].startswith("exact")
    assert "proved" not in repr(unsure.sections)
    assert "another option may be the best" in proofs[1]


def test_a_plan_that_may_miss_its_deadline_or_trains_otherwise_gets_no_tick():
    (best,) = plan().best
    for change in ({"chance_to_meet": 0.83, "chance_by_luck": 0.9}, {"changes_training": ["x: y"]}):
        page = page_of(plan(best=(dataclasses.replace(best, **change),)))
        assert page.sections[0].level == "note"
    assert "Option 1: x: y." in titled(page, "What changes the training itself").lines


def test_a_plan_that_nothing_meets_says_what_binds():
    nearest = dataclasses.replace(plan().best[0], misses={"deadline": 1.5})
    page = page_of(plan(best=(), front=(), nearest=nearest, binding="deadline"))
    assert page.sections[0].level == "warning"
    assert page.sections[0].lines == [
        "No point meets the limits by the deadline, 24 h.",
        "The nearest: world_size: 4: deadline 1.5 times what is allowed.",
    ]


FIGURES = {
    "1.5 ms": (seconds(1.5004e-3), 1.5e-3),
    "+12 us": (difference_table.signed(12e-6), 12e-6),
    "-3.2 %": (percent(-0.03204), -0.032),
    "7.62 GB": (nbytes(7_621_000_000), 7.62e9),
    "12,345": (large_number(12345.4), 12345.0),
    "2.5x*": (speedup(2.5, 1.0, is_best=True), 2.5),
    "2 h": (long_time(2.0 * 3600), 7200.0),
    "40.0-50.0": (interval((0.04, 0.05), 1e-3), 40.0),
    "-": (number(None), None),
    "nan": (number(float("nan")), None),
}


@for_each("text", FIGURES)
def test_figures_carry_the_value_that_they_show(text):
    made, value = FIGURES[text]
    assert made == text
    assert made.value == (None if value is None else pytest.approx(value))


def test_names_of_scenarios_stay_text(document):
    evil = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'
    if not hasattr(document, "scenario"):
        pytest.skip("it names no scenario")
    stream = BytesIO()
    write(dataclasses.replace(document, scenario={**SCENARIO, "name": evil}), stream)
    assert b"<img src=x" not in stream.getvalue()
    assert b"<script>alert" not in stream.getvalue()


def test_summaries_have_tiles(document):
    tiles = [tile for one in sections(page_of(document), Summary) for tile in one.tiles]
    assert all(tile.name and tile.value for tile in tiles)
    assert tiles


def test_a_plan_says_how_many_points_were_not_simulated_and_why():
    told = repr(page_of(plan()).sections)
    assert "label='  need more memory', value='3'" in told


def test_an_audit_shows_causes_with_their_lines_tensors_and_experiments():
    page = page_of(audit(), command=["audit", "train.py"])
    assert page.about == "audit of train.py: 1 and 2 ranks, 5 steps of 4 samples"
    assert page.sections[0].level == "warning"
    assert page.sections[0].lines == [
        "loss_mean_of_rank_means: the loss is a mean of each rank's mean; tokens per rank 61 to "
        "412 (train.py:88)",
        "proof: weighted by tokens, 1 and 2 ranks agree to 2e-12",
        "remedy: divide by the tokens of all ranks",
    ]
    assert texts(titled(page, "Checks"))[0] == ["gradients", "differs", "first at step 1"]
    first, second = titled(page, "Findings").rows
    assert first[:4] == [
        *("loss_mean_of_rank_means", "wrong", "train.py:88", "step 1, norm.weight: 4.0e-3")
    ]
    assert second[1:4] == ["legitimate", "train.py:71", "-"]
    (row,) = titled(page, "First tensors that differ").rows
    assert row == ["gradient", "norm.weight", "1", "1 and 2", "4.0e-3", "3.0e-7"]
    assert [one[5] for one in titled(page, "Experiments").rows] == ["yes", "no"]
    assert titled(page, "Notes").lines == ("a step has 4 samples",)
    assert titled(page, "How to reproduce it").source == "python -m simdp audit train.py"


def test_the_samples_of_an_audit_are_marked_where_they_come_again_or_never():
    (section,) = sections(page_of(audit()), Ledger)
    one, two = section.data["panels"]
    assert [panel["name"] for panel in (one, two)] == ["1 rank", "2 ranks"]
    assert (section.data["first"], section.data["last"], section.data["steps"]) == (0, 9, 5)
    assert one["epochs"] == [
        {"epoch": 1, "from": 1, "to": 2, "missed": [8, 9]},
        {"epoch": 2, "from": 3, "to": 4, "missed": None},
    ]
    assert [(epoch["from"], epoch["missed"]) for epoch in two["epochs"]] == [(1, []), (4, None)]
    assert [cell for cell in two["cells"] if cell[4]] == [
        (0, 3, 1, [8, 0], [1]),
        (1, 3, 1, [9, 1], [1]),
    ]
    assert section.note == (
        "1 rank: none seen before in an epoch, 2 missed in whole epochs; 2 ranks: 2 seen before in "
        "an epoch, none missed in whole epochs."
    )


def test_a_large_ledger_shows_its_first_steps_and_ranks():
    rows = tuple(
        SampleRow(200, rank, step, 1, tuple(range(1000))) for step in (1, 2) for rank in range(200)
    )
    page = page_of(audit(ledger=rows, samples=None))
    (section,) = sections(page, Ledger)
    (panel,) = section.data["panels"]
    assert (panel["ranks"], panel["steps"], len(panel["cells"])) == (128, 1, 128)
    assert section.note.endswith("the first 1 step is drawn, and the first 128 ranks are drawn.")


def test_an_audit_without_a_fault_gets_a_tick_and_one_that_is_legitimate_none():
    right = page_of(audit(findings=(), experiments=(), tensors=(), ledger=(), notes=()))
    assert right.sections[0].level == "good"
    assert right.sections[0].lines == ["Nothing is wrong."]
    assert [one.title for one in right.sections] == ["Verdict", "Summary", "Checks"]
    intended = page_of(audit(findings=audit().findings[1:]))
    assert intended.sections[0].level == "note"
    assert intended.sections[0].lines == [
        "Nothing is wrong; it differs by sampler_padding_duplicates."
    ]


def test_the_points_of_a_sweep_have_a_column_and_panels_of_their_own():
    points = ["a=1", "a=2"]
    checks = tuple(Check("gradients", "ok", "agree", point) for point in points)
    rows = tuple(
        dataclasses.replace(row, point=point) for point in points for row in audit().ledger
    )
    page = page_of(audit(checks=checks, ledger=rows, resume_same=False, resume_step=4))
    assert titled(page, "Checks").heads[-1] == "point"
    (section,) = sections(page, Ledger)
    assert [panel["name"] for panel in section.data["panels"]] == [
        *("1 rank, with a=1", "2 ranks, with a=1", "1 rank, with a=2", "2 ranks, with a=2")
    ]
    assert titled(page, "Summary").rows[-1].text == (
        "differs from the run that was not stopped, first at step 4"
    )
