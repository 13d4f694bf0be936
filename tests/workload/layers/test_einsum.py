"""Einsum: what an equation may be, and what its three products cost."""

import re

import pytest
from for_each import for_each
from layer_checks import kept_nbytes

from simdp.workload.layers.base import ShapeError
from simdp.workload.layers.linear import Einsum, Linear, split_equation

LAYER = Einsum(name="e", equation="bd,df->bf", sizes={"d": 4, "f": 3})


@for_each(
    ("equation", "parts"),
    [
        ("bd,df->bf", ("bd", "df", "bf")),
        (" bd , df -> bf ", ("bd", "df", "bf")),
        ("bsd,df->bsf", ("bsd", "df", "bsf")),
        ("bd,fd->bf", ("bd", "fd", "bf")),
        ("bhd,hdf->bhf", ("bhd", "hdf", "bhf")),
        ("bd,d->b", ("bd", "d", "b")),
        ("Bd,dF->BF", ("Bd", "dF", "BF")),
    ],
)
def test_an_equation_is_cut_into_its_operands(equation, parts):
    assert split_equation(equation) == parts


LOOKS = 'it must look like "bd,df->bf": the batch, the weight, the output'


@for_each(
    ("equation", "reason"),
    [
        ("", LOOKS),
        ("bd,df", LOOKS),
        ("bd->b", LOOKS),
        ("bd,df,fg->bg", LOOKS),
        ("bd,df->", LOOKS),
        (",df->bf", LOOKS),
        ("b1,1f->bf", LOOKS),
        ("...d,df->...f", LOOKS),
        ("bd,df->bf->b", LOOKS),
        ("bdd,df->bf", "an index may occur once in each operand"),
        ("bd,ddf->bf", "an index may occur once in each operand"),
        ("bd,df->bff", "an index may occur once in each operand"),
        ("bd,df->fb", "the first index of the batch and of the output must be the sample's"),
        ("bd,bdf->bf", "the first index of the batch and of the output must be the sample's"),
        ("bde,df->bf", "the index 'e' occurs in one operand only"),
        ("bd,dfe->bf", "the index 'e' occurs in one operand only"),
        ("bd,df->bfe", "the index 'e' occurs in one operand only"),
    ],
)
def test_an_equation_that_cannot_be_trained_on_is_refused(equation, reason):
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        split_equation(equation)


def test_it_takes_samples_of_one_shape_only():
    assert LAYER.output_shape((4,)) == (3,)
    with pytest.raises(ShapeError, match=r"^takes samples of shape \(4,\), but gets \(5,\)$"):
        LAYER.output_shape((5,))


def test_it_costs_what_the_same_linear_layer_costs():
    linear = Linear(name="l", in_features=4, out_features=3, bias=False)
    for itemsize in (2, 4, 8):
        assert LAYER.forward_cost([(4,)], itemsize) == linear.forward_cost([(4,)], itemsize)
        for needs in ([True], [False]):
            assert LAYER.backward_cost([(4,)], itemsize, needs) == linear.backward_cost(
                [(4,)], itemsize, needs
            )
        assert kept_nbytes(LAYER, [(4,)], itemsize) == kept_nbytes(linear, [(4,)], itemsize)


def test_an_index_that_is_kept_multiplies_the_products():
    layer = Einsum(name="e", equation="bhd,hdf->bhf", sizes={"h": 2, "d": 4, "f": 3})
    (kernel,) = layer.forward_cost([(2, 4)], 4)
    assert kernel[:3] == (2 * 2 * 4 * 3, 4 * (2 * 4 + 2 * 3), 4 * 2 * 4 * 3)
