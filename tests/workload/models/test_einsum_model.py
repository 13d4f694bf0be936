"""einsum, the model: its weight, the sizes of its indices, and what is refused."""

import pytest
from for_each import for_each
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.layers.base import uniform
from simdp.workload.models import AnyModel


def einsum(equation, **sizes):
    raw = {"kind": "einsum", "equation": equation, **sizes}
    return TypeAdapter(AnyModel).validate_python(raw)


def refusal(equation, **sizes):
    with pytest.raises(ValidationError) as caught:
        einsum(equation, **sizes)
    raw = {"kind": "einsum", "equation": equation, **sizes}
    return [found.line for found in problems(caught.value, raw)]


def test_it_has_one_weight_with_a_size_for_every_index():
    chosen = einsum("bsd,dhf->bshf", s=2, d=4, h=5, f=3)
    (weight,) = chosen.parameters()
    assert (weight.name, weight.shape) == ("weight", (4, 5, 3))
    assert chosen.known_shapes() == ((2, 4),)
    assert chosen.output_shape() == (2, 5, 3)
    assert weight.initial == uniform(0.5)  # 1 / sqrt(d): what one output sums over


@for_each(
    ("equation", "reason"),
    [
        ("bd,df", 'it must look like "bd,df->bf": the batch, the weight, the output'),
        ("bd,df->bff", "an index may occur once in each operand"),
        ("bd,df->fb", "the first index of the batch and of the output must be the sample's"),
        ("bde,df->bf", "the index 'e' occurs in one operand only"),
    ],
)
def test_an_equation_that_cannot_be_trained_on_is_refused(equation, reason):
    assert refusal(equation, d=4, f=3) == [
        f"equation: {equation!r} is not a valid equation: {reason}."
    ]


@for_each(
    ("sizes", "line"),
    [
        ({"d": 4}, "index 'f' of 'bd,df->bf' has no size; add f: 64."),
        ({"d": 4, "f": 3, "g": 2}, "unknown key 'g'; known: equation, d, f."),
        ({"b": 8, "d": 4, "f": 3}, "unknown key 'b'; known: equation, d, f."),
        ({"d": 4, "f": 0}, "f: 0 is not a size; write a whole number from 1 to 10^8."),
        ({"d": 4, "f": 2.5}, "f: 2.5 is not a size; write a whole number from 1 to 10^8."),
        ({"d": 4, "f": True}, "f: True is not a size; write a whole number from 1 to 10^8."),
        ({"d": 4, "f": 3, "width": 2}, "unknown key 'width'; known: equation."),
    ],
)
def test_wrong_sizes_are_refused(sizes, line):
    assert refusal("bd,df->bf", **sizes) == [line]
