"""The transformers of "Attention is all you need" against torch and the paper's figures."""

import pytest
from image_nets import model, published
from text_nets import assert_has_the_published_flops

PAPER = {"transformer-base": 65e6, "transformer-big": 213e6}
"""Parameters in table 3, where the output has the embedding's weight and no bias."""

every_preset = pytest.mark.parametrize("name", PAPER)


@every_preset
def test_a_preset_has_torchs_parameters(name):
    assert model(name).num_parameters() == published(name, "parameters")


@every_preset
def test_all_but_the_output_are_the_papers_parameters(name):
    chosen = model(name)
    output = sum(p.num_elements for p in chosen.parameters() if p.name.startswith("fc."))
    assert output == 37000 * chosen.d_model + 37000
    # 63.1M and 214.2M here
    assert chosen.num_parameters() - output == pytest.approx(PAPER[name], rel=0.04)


@every_preset
def test_a_preset_has_torchs_flops(name):
    assert_has_the_published_flops(name)


@every_preset
def test_a_sample_suits_the_synthetic_tokens(name):
    chosen = model(name)
    ((x,), (tgt,)) = chosen.known_shapes()
    assert tgt == x + 1
    assert chosen.output_shape() == (tgt, 37000)
