"""Errors: one line each, of bounded length, whatever a value in it holds."""

from simdp.errors import MAX_LINE, ScenarioError, one_line, shown, unknown_name


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
