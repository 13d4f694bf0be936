"""Errors: one line each, of bounded length, whatever a value in it holds."""

from for_each import for_each

from simdp.errors import MAX_LINE, ScenarioError, close_names, one_line, shown, unknown_name


def test_what_ends_a_line_on_some_screen_is_escaped():
    assert one_line("a\nb\r\t\x1b[31m\x85\u2028") == "a\\nb\\r\\t\\x1b[31m\\x85\\u2028"
    assert str(ScenarioError(["a\nb", "c"])) == "a\\nb\nc"
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
    assert line.endswith("...; known: ring, tree.")
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
    ],
)
def test_names_that_begin_with_or_hold_what_was_given_were_meant(given, known, close):
    assert close_names(given, known) == close


def test_several_names_that_may_be_meant_are_listed():
    line = unknown_name("device", "a100", ["a100-pcie-40gb", "a100-sxm4-40gb", "t4-16gb"])
    assert line.endswith("Did you mean 'a100-pcie-40gb' or 'a100-sxm4-40gb'?")
