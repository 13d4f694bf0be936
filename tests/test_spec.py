"""Spec: strict keys, families of kinds, catalogue names, quantities, errors of one line each."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from for_each import for_each
from pydantic import Field, ValidationError

from simdp.errors import DeadlockError, ScenarioError, UnitError, unknown_name
from simdp.spec import (
    Bandwidth,
    Bool,
    Int,
    PositiveSeconds,
    Seconds,
    Spec,
    from_catalogue,
    one_of,
    problems,
)

ROOT = Path(__file__).parents[1]


class Shape(Spec):
    kind: str


class Circle(Shape):
    kind: Literal["circle"] = "circle"
    radius: float = Field(1.0, gt=0)


class Square(Shape):
    kind: Literal["square"] = "square"
    side: Int = Field(ge=1, le=9)


class Nothing(Shape):
    kind: Literal["none"] = "none"


class Wire(Spec):
    name: str | None = None
    length: Int


SHAPES = {"circle": Circle, "none": Nothing, "square": Square}
PARTS = {"thick": {"length": 3}, "thin": {"length": 7}}


class Thing(Spec):
    shape: Annotated[Shape, one_of("shape", SHAPES)] = Circle()
    more: list[Annotated[Shape, one_of("shape", SHAPES)]] = []
    wire: Annotated[Wire, from_catalogue("wire", lambda: sorted(PARTS), PARTS.__getitem__)] = Wire(
        length=1
    )
    pause: Seconds = 0.0
    period: PositiveSeconds = 1.0
    rate: Bandwidth = 1.0
    on: Bool = True
    label: str = ""
    colour: Literal["red", "green"] = "red"
    sizes: list[Int] = Field([1], min_length=1)
    table: dict[str, int] = {}


def refusal(**raw):
    with pytest.raises(ValidationError) as caught:
        Thing.model_validate(raw)
    return [found.line for found in problems(caught.value, raw)]


# Values ------------------------------------------------------------------------------------------


def test_a_spec_is_frozen_and_equal_by_value():
    thing = Thing(shape={"kind": "square", "side": 2})
    assert thing == Thing(shape={"kind": "square", "side": 2})
    with pytest.raises(ValidationError, match="frozen"):
        thing.on = False


@for_each("written", ["circle", {"kind": "circle"}, Circle()])
def test_a_kind_without_options_may_be_written_as_its_name(written):
    assert Thing(shape=written).shape == Circle()


@for_each("written", ["none", None, False])
def test_none_is_a_kind_however_yaml_reads_it(written):
    assert Thing(shape=written).shape == Nothing()


@for_each("name", PARTS)
def test_a_catalogue_name_stands_for_its_figures(name):
    assert Thing(wire=name).wire == Wire(name=name, **PARTS[name])


def test_a_catalogue_part_may_be_written_out():
    assert Thing(wire={"length": 5}).wire == Wire(length=5)


def test_a_spec_is_written_with_its_members_and_units():
    thing = Thing(shape={"kind": "square", "side": 2}, more=["circle"], pause="5 us")
    written = thing.model_dump(mode="json", exclude_none=True)
    assert written["shape"] == {"kind": "square", "side": 2}
    assert written["more"] == [{"kind": "circle", "radius": 1.0}]
    assert written["pause"] == "5 us"
    assert Thing.model_validate(written) == thing


class Drawing(Spec):
    shape: Annotated[Shape, one_of("shape", SHAPES, default="circle")] = Circle()


@for_each("raw", [{"radius": 2}, {"kind": "circle", "radius": 2}])
def test_a_mapping_without_a_kind_is_of_the_default_kind(raw):
    assert Drawing(shape=raw).shape == Circle(radius=2)


def test_the_default_kind_refuses_the_options_of_others():
    with pytest.raises(ValidationError) as caught:
        Drawing(shape={"side": 2})
    ((_, line, _),) = problems(caught.value, {"shape": {"side": 2}})
    assert line == "shape: unknown key 'side'; known: radius."


def test_a_member_that_is_made_already_is_taken_as_it_is():
    square = Square(side=3)
    assert Thing(shape=square).shape is square


class Triangle(Shape):
    kind: Literal["triangle"] = "triangle"


def test_a_spec_of_no_member_is_refused():
    assert refusal(shape=Triangle()) == [
        "shape: unknown shape 'triangle'; known: circle, none, square."
    ]


@for_each(
    ("value", "member"),
    [
        ("circle", Circle),
        ({"kind": "Square", "side": "wrong"}, Square),
        (Circle(), Circle),
        (None, Nothing),
        ("sqare", None),
        (3, None),
        ({"side": 2}, None),
    ],
)
def test_the_class_that_a_value_names_is_known_before_it_is_valid(value, member):
    assert one_of("shape", SHAPES).member(value) is member


# Families ----------------------------------------------------------------------------------------


def test_a_family_imports_a_member_when_it_is_asked_for():
    code = (
        "import sys; from simdp.workload.schedules import SCHEDULES; "
        "before = set(sys.modules); list(SCHEDULES), 'noam' in SCHEDULES; "
        "assert set(sys.modules) == before; noam = SCHEDULES['noam']; "
        "assert set(sys.modules) - before == {'simdp.workload.schedules.warmup'}; "
        "print(noam.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("Noam\n", "")


# Spellings and presets ---------------------------------------------------------------------------


class BatchNorm2d(Shape):
    kind: Literal["batch_norm2d"] = "batch_norm2d"
    num_features: Int


class Relu(Shape):
    kind: Literal["relu"] = "relu"


LAYERS = {"batch_norm2d": BatchNorm2d, "relu": Relu}
PRESETS = {
    "norm-64": {"kind": "batch_norm2d", "num_features": 64},
    "two_circles": {"kind": "relu"},
}


class Net(Spec):
    layer: Annotated[Shape, one_of("layer", LAYERS, presets=PRESETS)]
    after: Annotated[Shape, one_of("layer", LAYERS)] = Relu()


@for_each(
    "kind",
    ["batch_norm2d", "BatchNorm2d", "batchnorm2d", "batch-norm2d", "BATCH_NORM2D", "Batch Norm 2d"],
)
def test_a_kind_may_be_spelled_as_torch_spells_its_classes(kind):
    net = Net(layer={"kind": kind, "num_features": 3})
    assert net.layer == BatchNorm2d(num_features=3)
    assert net.model_dump()["layer"]["kind"] == "batch_norm2d"


@for_each("kind", ["ReLU", "relu", "RELU"])
def test_the_short_form_may_be_spelled_freely_too(kind):
    assert Net(layer=kind).layer == Relu()


def test_a_preset_stands_for_a_kind_with_its_keys():
    assert Net(layer="norm-64").layer == BatchNorm2d(num_features=64)
    assert Net(layer={"kind": "Norm_64"}).layer == BatchNorm2d(num_features=64)


def test_keys_beside_a_presets_name_win():
    assert Net(layer={"kind": "norm-64", "num_features": 3}).layer == BatchNorm2d(num_features=3)
    assert PRESETS["norm-64"]["num_features"] == 64


def test_a_preset_is_written_as_what_it_stands_for():
    written = Net(layer="norm-64").model_dump()
    assert written["layer"] == {"kind": "batch_norm2d", "num_features": 64}
    assert Net.model_validate(written) == Net(layer="norm-64")


@for_each(
    ("raw", "line"),
    [
        (
            {"layer": "norm-65"},
            "layer: unknown layer 'norm-65'. Did you mean 'norm-64'? Known: batch_norm2d, "
            "norm-64, relu, two_circles.",
        ),
        (
            {"layer": {"kind": "norm-64", "features": 3}},
            "layer: unknown key 'features'. Did you mean 'num_features'? Known: num_features.",
        ),
        (
            {"layer": {"kind": "norm-64", "num_features": 2.5}},
            "layer.num_features: 2.5 is not a whole number.",
        ),
        (
            {"layer": "relu", "after": {"kind": "BatchNorm2d"}},
            "after.num_features: is required but was not given; add it.",
        ),
        (
            {"layer": "relu", "after": "norm-64"},
            "after: unknown layer 'norm-64'; known: batch_norm2d, relu.",
        ),
    ],
)
def test_what_is_wrong_beside_another_spelling_or_a_preset_is_told_in_place(raw, line):
    with pytest.raises(ValidationError) as caught:
        Net.model_validate(raw)
    assert [found.line for found in problems(caught.value, raw)] == [line]


class Legs(Spec):
    circle: Int
    square: Annotated[Shape, one_of("shape", SHAPES)]


def test_a_missing_key_that_is_also_a_kind_keeps_its_place():
    for raw, line in (
        ({"square": "circle"}, "circle: is required but was not given; add it."),
        ({"circle": 1}, "square: is required but was not given; add it."),
        ({"circle": 1, "square": "square"}, "square.side: is required but was not given; add it."),
    ):
        with pytest.raises(ValidationError) as caught:
            Legs.model_validate(raw)
        assert [found.line for found in problems(caught.value, raw)] == [line]


# Refusals ----------------------------------------------------------------------------------------


@for_each(
    ("raw", "line"),
    [
        (
            {"shap": 1},
            "unknown key 'shap'. Did you mean 'shape'? Known: shape, more, wire, pause, period, "
            "rate, on, label, colour, sizes, ... and 1 more.",
        ),
        (
            {"shape": {"kind": "circle", "radios": 2}},
            "shape: unknown key 'radios'. Did you mean 'radius'? Known: radius.",
        ),
        ({"shape": {"kind": "none", "x": 2}}, "shape: unknown key 'x'; none are known here."),
        (
            {"shape": "circel"},
            "shape: unknown shape 'circel'. Did you mean 'circle'? Known: circle, none, square.",
        ),
        (
            {"more": ["circle", {"kind": "hexagon"}]},
            "more.1: unknown shape 'hexagon'; known: circle, none, square.",
        ),
        ({"shape": {"radius": 1}}, "shape: this shape has no kind; known: circle, none, square."),
        ({"shape": 3}, "shape: 3 is not a shape; known: circle, none, square."),
        ({"shape": ["circle"]}, "shape: ['circle'] is not a shape; known: circle, none, square."),
        ({"shape": "square"}, "shape.side: is required but was not given; add it."),
        (
            {"shape": {"kind": "square", "side": 0}},
            "shape.side: 0 is out of range; it must be >= 1.",
        ),
        (
            {"shape": {"kind": "square", "side": 10}},
            "shape.side: 10 is out of range; it must be <= 9.",
        ),
        (
            {"shape": {"kind": "circle", "radius": 0}},
            "shape.radius: 0 is out of range; it must be > 0.0.",
        ),
        (
            {"shape": {"kind": "circle", "radius": "wide"}},
            "shape.radius: 'wide' is not a number.",
        ),
        ({"shape": {"kind": "circle", "radius": [1]}}, "shape.radius: [1] is not a number."),
        (
            {"shape": {"kind": "circle", "radius": float("nan")}},
            "shape.radius: nan is not a finite number.",
        ),
        ({"wire": "thik"}, "wire: unknown wire 'thik'. Did you mean 'thick'? Known: thick, thin."),
        ({"wire": {}}, "wire.length: is required but was not given; add it."),
        ({"wire": 3}, "wire: 3 is not a mapping of keys to values."),
        ({"pause": 5}, 'pause: 5 has no unit; write "5 s", "5 ms" or "5 us".'),
        ({"pause": "-1 s"}, "pause: -1 s is out of range; it must be >= 0 s and finite."),
        ({"period": "0 s"}, "period: 0 s is out of range; it must be > 0 s and finite."),
        ({"rate": "5 us"}, "rate: '5 us' is not a bandwidth; write for example \"25 GB/s\"."),
        (
            {"rate": "1e-310 GB/s"},
            "rate: 1e-310 GB/s is out of range; it must lie between 1e-30 and 1e+30 B/s.",
        ),
        (
            {"pause": "1e308 s"},
            "pause: 1e308 s is out of range; it must lie between 1e-30 and 1e+30 s.",
        ),
        ({"rate": "1e400 B/s"}, "rate: 1e400 B/s is out of range; it must be > 0 B/s and finite."),
        ({"on": "perhaps"}, "on: 'perhaps' is not true or false."),
        ({"on": [1]}, "on: [1] is not true or false."),
        ({"on": 1}, "on: 1 is not true or false."),
        ({"on": "yes"}, "on: 'yes' is not true or false."),
        ({"wire": {"length": 64.0}}, "wire.length: 64.0 is not a whole number."),
        ({"wire": {"length": True}}, "wire.length: True is not a whole number."),
        ({"wire": {"length": "3"}}, "wire.length: '3' is not a whole number."),
        ({"label": 3}, "label: 3 is not a text."),
        ({"colour": "blue"}, "colour: 'blue' is not allowed; known: 'red' or 'green'."),
        ({"sizes": 3}, "sizes: 3 is not a list."),
        ({"sizes": []}, "sizes: [] has too few entries; it needs at least 1."),
        ({"sizes": [1, 2.5]}, "sizes.1: 2.5 is not a whole number."),
        ({"sizes": [1, "b"]}, "sizes.1: 'b' is not a whole number."),
        ({"sizes": [None]}, "sizes.0: None is not a whole number."),
        ({"table": [1]}, "table: [1] is not a mapping of keys to values."),
        ({"table": {"a": "x"}}, "table.a: 'x' is not a whole number."),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(raw, line):
    assert refusal(**raw) == [line]


@for_each("kind", [["circle"], {"a": 1}, 3, True])
def test_a_kind_that_is_no_word_is_refused(kind):
    (line,) = refusal(shape={"kind": kind})
    assert line.startswith("shape: ")
    assert "known: circle, none, square." in line


def test_all_problems_are_reported_together():
    lines = refusal(
        shap=1, shape={"kind": "square", "side": 0, "radius": 2}, pause=5, wire={"lenght": 2}
    )
    starts = [
        "unknown key 'shap'",
        "shape: unknown key 'radius'; known: side.",
        "shape.side: 0 is out of range",
        "wire: unknown key 'lenght'. Did you mean 'length'? Known: name, length.",
        "wire.length: is required",
        "pause: 5 has no unit",
    ]
    assert len(lines) == len(starts)
    for start in starts:
        assert sum(line.startswith(start) for line in lines) == 1, start


def test_a_long_value_is_shortened():
    (line,) = refusal(sizes="x" * 100)
    assert line == f"sizes: '{'x' * 56}... is not a list."


def test_a_key_that_is_also_a_kind_keeps_its_place():
    (line,) = refusal(table={"circle": "x"})
    assert line == "table.circle: 'x' is not a whole number."


# Errors ------------------------------------------------------------------------------------------


@for_each(
    ("given", "known", "message"),
    [
        ("rign", ["ring", "tree"], "unknown x 'rign'. Did you mean 'ring'? Known: ring, tree."),
        ("abc", ["ring", "tree"], "unknown x 'abc'; known: ring, tree."),
        (3, ["ring"], "unknown x 3; known: ring."),
        ("a", [], "unknown x 'a'; none are known here."),
    ],
)
def test_an_unknown_name_lists_the_known_ones(given, known, message):
    assert unknown_name("x", given, known) == message


def test_errors_know_their_exit_status():
    assert (ScenarioError.exit_status, UnitError.exit_status, DeadlockError.exit_status) == (
        2,
        2,
        4,
    )


def test_a_scenario_error_keeps_its_problems_on_the_way_between_processes():
    error = pickle.loads(pickle.dumps(ScenarioError(["a: wrong.", "b: wrong."])))
    assert error.problems == ["a: wrong.", "b: wrong."]
    assert str(error) == "a: wrong.\nb: wrong."


def test_a_deadlock_error_names_who_waits_also_between_processes():
    error = pickle.loads(pickle.dumps(DeadlockError(["rank 0 waits", "rank 1 waits"])))
    assert str(error) == "deadlock: rank 0 waits; rank 1 waits"
    assert error.waiting == ["rank 0 waits", "rank 1 waits"]
