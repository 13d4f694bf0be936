"""What changed between two results, in words and in 80 columns."""

import io

from rich.console import Console

from simdp.reports.difference_table import (
    by_itself,
    part_in_words,
    signed,
    table,
    values,
    words,
)
from simdp.results.comparison import (
    Difference,
    Figure,
    KeyChange,
    PartChange,
    PointDifference,
    Side,
)

A, B = Side("a", "result", "0.1.0", 1, 8), Side("b", "result", "0.1.0", 1, 8)
CAP = KeyChange(
    "strategy.bucket_cap", "25 MiB", "1 MiB", 11.8e-3, 11e-3, 12.6e-3, {"exposed_comm_s": 11.8e-3}
)
POINT = PointDifference(
    {},
    50e-3,
    62.3e-3,
    None,
    (
        PartChange("exposed_comm_s", 1e-3, 12.8e-3, ("strategy.bucket_cap",)),
        PartChange("compute_s", 48e-3, 48.5e-3),
        PartChange("update_s", 1e-3, 1e-3),
        PartChange("wait_s", 0.0, 0.0),
        PartChange("other_s", 0.0, 0.0),
    ),
    (Figure("peak memory", "bytes", 8e9, 9e9), Figure("a step costs", "USD", None, 1e-3)),
    (CAP, KeyChange("seed", 0, 1, 0.5e-3, 0.5e-3, 0.5e-3)),
    0.0,
)


def printed(found):
    stream = io.StringIO()
    Console(file=stream, width=80, highlight=False).print(table(found), soft_wrap=True)
    return stream.getvalue()


def test_words_name_the_part_that_changed_most_and_its_key_first():
    assert words(Difference("0.1.0", A, B, (POINT,))) == [
        "a -> b: step 50 ms -> 62.3 ms, +12.3 ms (24.6 % longer)",
        "  exposed communication +11.8 ms (bucket_cap 25 MiB -> 1 MiB)",
        "  compute +500 us",
    ]


def test_the_table_has_all_parts_keys_and_figures_in_80_columns():
    shown = printed(Difference("0.1.0", A, B, (POINT,), notes=("A note.",)))
    assert max(map(len, shown.splitlines())) <= 80
    for said in (
        "exposed communication",
        "+11.8",
        "95.9 %",
        "+11 ms or +12.6 ms",
        "9 GB",
        "A note.",
    ):
        assert said in shown
    assert "1.12x" in shown


def test_many_points_have_a_row_each():
    points = tuple(
        PointDifference({"cluster.world_size": n}, 1.0, b, None, POINT.parts, (), (CAP,))
        for n, b in ((2, 1.0), (4, 2.0), (8, 0.5))
    )
    found = Difference("0.1.0", A, B, points, only_a=({"cluster.world_size": 16},))
    assert words(found)[0] == "a -> b: steps of 3 points: 1 longer, 1 shorter, 1 the same"
    assert words(found)[2].startswith("  world_size: 4: 1 s -> 2 s, +1 s (2 times as long)")
    shown = printed(found)
    assert "only in a: world_size: 16" in shown
    assert "keys that differ at every point" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_nothing_changed_is_said():
    same = PointDifference({}, 1.0, 1.0, None, (PartChange("compute_s", 1.0, 1.0),), (), ())
    assert words(Difference("0.1.0", A, B, (same,))) == [
        "a -> b: step 1 s -> 1 s, the same",
        "  no part of the step changed",
    ]


def test_a_measured_step_is_inside_or_outside_the_interval():
    inside = PointDifference({}, 1.0, 1.2, [0.9, 1.3], (), (), ())
    assert "is inside the simulated 90 % interval, 900 ms to 1.3 s" in words(
        Difference("0.1.0", A, B, (inside,))
    )[-1].replace("\n", " ")
    outside = PointDifference({}, 1.0, 1.4, [0.9, 1.3], (), (), ())
    assert "is outside" in words(Difference("0.1.0", A, B, (outside,)))[-1]


def test_kinds_and_names_stand_for_their_options():
    kinds = KeyChange("strategy", {"kind": "ddp", "x": 1}, {"kind": "fsdp", "y": 2})
    assert values(kinds) == ("ddp", "fsdp")
    names = KeyChange("cluster.link", {"name": "nvlink2", "x": 1}, {"name": "ib-hdr"})
    assert values(names) == ("nvlink2", "ib-hdr")
    half = KeyChange("cluster.link", {"name": "nvlink2", "x": 1}, {"alpha": "5 us"})
    assert values(half) == ("nvlink2", "(alpha=5 us)")
    assert values(KeyChange("a", None, [1] * 99))[1].endswith(" ...")


def test_a_key_by_itself_is_told_from_both_sides():
    assert by_itself(CAP) == "+11 ms or +12.6 ms"
    assert by_itself(KeyChange("a", 1, 2)) == "-"
    assert by_itself(KeyChange("x.a", 1, 2, together=("x.b",))) == "with b"
    assert signed(-0.5) == "-500 ms"
    assert signed(1e-15) == "0"


def test_evidence_that_ends_in_full_stops_is_one_sentence():
    part = PartChange("compute_s", 1e-3, 2e-3, evidence=("products take 1 ms.", "copies take 2."))
    assert part_in_words(part, POINT).endswith("; products take 1 ms; copies take 2.")
