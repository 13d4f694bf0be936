"""The table of an audit: a row per check, with causes, proofs and lines of code below it."""

from dataclasses import replace

import pytest
from for_each import for_each

from simdp.reports.audit_table import lines, page, title, verdict
from simdp.results.audit import CAUSES, LEGITIMATE, AuditReport, Check, Finding

GRADIENTS = Check(
    "gradients",
    "differ",
    "first at step 1, layers.0.norm.weight: 4e-3 relative (rounding explains 3e-7)",
)
SAMPLES = Check("samples", "allowed", "12 of 384 seen twice, none missed")
STATE = Check("state", "ok", "replicas identical at every step")


def finding(cause="loss_mean_of_rank_means", **more):
    usual = {
        "legitimate": cause in LEGITIMATE,
        "file": "/home/me/train.py",
        "line": 88,
        "step": 1,
        "tensor": "layers.0.norm.weight",
        "size": 4e-3,
        "proof": "weighted by tokens, 1 and 4 ranks agree to 2e-12",
    }
    return Finding(cause, **{**usual, **more})


def report(checks=(GRADIENTS, SAMPLES, STATE), findings=(), **more):
    usual = {"ranks": (1, 2, 4), "steps": 8, "seen_twice": 12, "missed": 0, "batch": 32}
    return AuditReport("train.py", checks=checks, findings=findings, **{**usual, **more})


def test_the_title_has_the_ranks_the_steps_and_the_batch():
    assert title(report()) == "audit of train.py: 1, 2 and 4 ranks, 8 steps of 32 samples"
    short = replace(report(), ranks=(1, 4), steps=1, batch=None)
    assert title(short) == "audit of train.py: 1 and 4 ranks, 1 step"
    assert title(replace(short, ranks=(1,))) == "audit of train.py: 1 rank, 1 step"


def test_a_cause_stands_below_its_row_with_the_line_at_the_right():
    shown = lines(report(findings=(finding(),)), 100)
    assert shown[0].startswith("audit of train.py")
    assert shown[1] == ""
    assert shown[2].startswith("gradients   differ       first at step 1, layers.0.norm.weight")
    cause = next(line for line in shown if line.startswith("  cause"))
    assert cause.endswith("train.py:88")
    assert len(cause) == 100
    assert "loss_mean_of_rank_means: the loss is a mean of each rank's mean" in cause
    proof = shown.index("  proof     weighted by tokens, 1 and 4 ranks agree to 2e-12")
    assert shown.index(cause) < proof < shown.index(next(s for s in shown if s[:7] == "samples"))
    assert shown[-1] == "wrong: loss_mean_of_rank_means"


def test_what_is_allowed_or_legitimate_is_marked_and_is_not_wrong():
    allowed = finding(allowed=True)
    padding = finding("sampler_padding_duplicates", file=None, line=None, remedy="drop_last")
    found = report(findings=(allowed, padding))
    text = "\n".join(lines(found, 100))
    assert "loss_mean_of_rank_means (allowed)" in text
    assert "sampler_padding_duplicates (legitimate)" in text
    assert text.index("samples     ") < text.index("sampler_padding_duplicates (legit")
    assert "  remedy    drop_last" in text
    assert verdict(found) == (
        "nothing is wrong; it differs by loss_mean_of_rank_means, sampler_padding_duplicates"
    )
    assert verdict(report()) == "nothing is wrong"


def test_points_of_a_sweep_have_a_block_each_and_one_line_where_all_is_well():
    good = replace(STATE, point="strategy=ddp")
    bad = replace(GRADIENTS, point="strategy=local_sgd")
    cause = finding("local_updates", point="strategy=local_sgd", file="a.yaml", line=None)
    shown = lines(report((good, bad), (cause,)))
    assert "with strategy=ddp: ok (state)" in shown
    place = shown.index("with strategy=local_sgd:")
    assert shown[place + 1].startswith("  gradients   differ")
    assert any(line.startswith("    cause") and line.endswith("a.yaml") for line in shown)


@for_each("width", [80, 100])
@pytest.mark.parametrize("cause", CAUSES)
def test_lines_fit_and_every_cause_has_a_place(cause, width):
    topics = ("collectives", "samples", "epoch 2", "resume", "state", "gradients")
    checks = tuple(Check(topic, "differ", "a figure of 4e-3 " * 9) for topic in topics)
    found = report(checks, (finding(cause, text="some long words " * 9, proof="x " * 99),))
    shown = lines(replace(found, notes=("the batch is --batch-size " * 8,)), width)
    assert max(map(len, shown)) <= width
    assert sum(line.lstrip().startswith("cause") for line in shown) == 1
    assert str(page(found)).startswith("audit of train.py")


def test_a_cause_of_a_topic_that_has_no_row_stands_below_the_first_that_differs():
    shown = lines(report((STATE, GRADIENTS), (finding("resume_sampler_position"),)))
    labels = [line.split()[0] for line in shown if line and not line.startswith("    ")]
    assert labels.index("gradients") < labels.index("cause")
