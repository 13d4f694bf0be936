"""Errors: one line each, of bounded length, whatever a value in it holds."""

import pytest
from for_each import for_each

from simdp.errors import (
    LISTS,
    MAX_LINE,
    LedBy,
    ScenarioError,
    UnitError,
    close_names,
    joined,
    one_line,
    shown,
    unknown_name,
)
from simdp.reports.plan_table import infeasible_written
from simdp.results.plan import InfeasiblePoints
from simdp.studies.executor.base import Failed
from simdp.studies.families import names as families


def test_what_ends_a_line_on_some_screen_is_escaped():
    assert one_line("a\nb\r\t\x1b[31m\x85\u2028") == "a\\nb\\r\\t\\x1b[31m\\x85\\u2028"
    assert str(ScenarioError(["a\nb", "c"])) == "a\\nb\nc"
    assert ScenarioError("a\nb").problems == ["a\\nb"]
    assert one_line("25 µs, 3 × 4") == "25 µs, 3 × 4"


def test_a_long_line_keeps_where_and_what_to_do():
    line = one_line(f"a.yaml: {'[1, 2], ' * 9999}; write one number.")
    assert len(line) == MAX_LINE
    assert line.startswith("a.yaml: [1, 2]")
    assert line.endswith("; write one number.")
    assert one_line(line) == line


def test_a_long_value_is_shown_by_its_beginning():
    assert shown("x") == "'x'"
    assert shown([1] * 99) == repr([1] * 99)[:57] + "..."
    line = unknown_name("topology", "ring" * 999, ["ring", "tree"])
    assert line.endswith(". Did you mean 'ring'? Known: ring, tree.")
    assert len(line) < 120


@for_each(
    ("given", "known", "close"),
    [
        (
            "a100",
            ["a10g-24gb", "a100-pcie-40gb", "a100-sxm4-40gb"],
            ["a100-pcie-40gb", "a100-sxm4-40gb"],
        ),
        ("H100 SXM5", ["h100-pcie-80gb", "h100-sxm5-80gb"], ["h100-sxm5-80gb"]),
        ("4090", ["rtx3090-24gb", "rtx4090-24gb"], ["rtx4090-24gb"]),
        ("rign", ["ring", "tree"], ["ring"]),
        ("ri", ["ring", "ringo", "rings"], ["ring"]),
        ("quantum", ["ring", "tree"], []),
        ("e", ["ring", "tree"], []),
        ("bf16", ["float32", "bfloat16"], ["bfloat16"]),
        ("float32", ["float", "half"], ["float"]),
        ("bfloat16", ["float32", "float64"], []),
        ("8B", ["llama3-8b", "llama3-70b", "mpt-7b"], ["llama3-8b"]),
        ("meta-llama/Llama-3.1-8B", ["llama2-7b", "llama3-8b", "llama3.2-1b"], ["llama3-8b"]),
        ("Qwen/Qwen2.5-7B-Instruct", ["qwen2", "qwen2.5-7b", "mistral-7b"], ["qwen2.5-7b"]),
        ("google-bert/bert-base-uncased", ["bert", "bert-base", "vit"], ["bert-base"]),
        ("facebook/opt-1.3b", ["mpt-13b", "mpt-1b"], []),
        ("adamw_torch_fused", ["adam", "adamw"], ["adamw"]),
        ("t4", ["l4-24gb", "t4-16gb"], ["t4-16gb"]),
    ],
)
def test_names_that_begin_with_or_hold_what_was_given_were_meant(given, known, close):
    assert close_names(given, known) == close


def test_several_names_that_may_be_meant_are_listed():
    line = unknown_name("device", "a100", ["a100-pcie-40gb", "a100-sxm4-40gb", "t4-16gb"])
    assert line.startswith(
        "unknown device 'a100'. Did you mean 'a100-pcie-40gb' or 'a100-sxm4-40gb'? Known: "
    )


def test_a_hint_comes_before_the_names_and_ten_of_them_are_listed():
    names = [f"r{number}" for number in range(52)]
    line = unknown_name("model", "r99", names, ["r9"])
    assert line == (
        "unknown model 'r99'. Did you mean 'r9'? Known: r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, "
        "... and 42 more: simdp list models."
    )
    assert unknown_name("key", "?", names).endswith("r9, ... and 42 more.")
    assert unknown_name("key", "?", names[:11]).endswith("r9, ... and 1 more.")


def test_the_command_that_an_error_names_lists_the_names():
    assert set(LISTS.values()) <= set(families())
    assert set(families()) - set(LISTS.values()) == {"constants"}


def test_joined_problems_are_one_sentence():
    assert joined(["a: is wrong; write b.", "c: too.", "try d."]) == (
        "a: is wrong; write b; c: too; try d."
    )
    assert joined(["a: is wrong."]) == "a: is wrong."
    assert joined([]) == ""
    reason = "cluster: needs a network; add inter_node: {...}."
    for line in (
        infeasible_written(InfeasiblePoints(reason, 2, "cluster")),
        Failed([reason, "try cluster."], ValueError()).reason,
    ):
        assert "add inter_node: {...}; try cluster" in line


def test_problems_of_a_block_are_led_by_its_place():
    for error in (ScenarioError(["a: is wrong.", "b: too."]), UnitError("a: is wrong.")):
        with pytest.raises(ScenarioError) as raised, LedBy("--for "):
            raise error
        assert raised.value.problems[0] == "--for a: is wrong."
    with LedBy("--for "):
        pass
