"""How much a layer keeps when it stands alone."""

from math import prod


def kept_nbytes(layer, inputs, itemsize):
    """Bytes per sample of everything that the layer keeps for backward."""
    kept = layer.kept(inputs, itemsize)
    elements = sum(prod(inputs[i]) for i in kept.inputs)
    elements += prod(layer.output_shape(*inputs)) * kept.output
    return elements * itemsize + kept.nbytes
