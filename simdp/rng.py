"""Random numbers: named streams of a seed, and the numbers of torch's generator on the CPU."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from math import pi, prod, sqrt

import numpy as np
from numpy.typing import NDArray

from simdp.arrays import Array, Floats, Ints


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """Return the random stream that belongs to a name.

    Parameters
    ----------
    seed : int
        The scenario's seed, 0 or more.
    *name : str or int
        Names of the stream, for example ``"straggler", 0, step``.

    Returns
    -------
    numpy.random.Generator
        The same stream for the same seed and name, on any machine.
    """
    key = [part if isinstance(part, int) else zlib.crc32(part.encode()) for part in name]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, len(key), *key])))


def uniform_at(
    seed: int, name: tuple[str | int, ...], members: Ints, shape: tuple[int, ...]
) -> Floats:
    """Uniform numbers in [0, 1) that depend only on their place, not on other draws.

    A counter-based generator: each number is a hash of the stream's key, the member and the
    place, so that cutting or padding an axis changes none of the numbers that stay.

    Parameters
    ----------
    seed, name
        As in `stream`.
    members : ndarray, shape `(num_members,)`
        For example the samples of a batch.
    shape : tuple of int
        Key of each member's draws.

    Returns
    -------
    ndarray, shape `(num_members, *shape)`

    References
    ----------
    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014: the
    finaliser of SplitMix64.
    """
    key = stream(seed, *name).integers(2**64, dtype=np.uint64)
    with np.errstate(over="ignore"):  # whole numbers modulo 2^64
        state = _mixed(members.astype(np.uint64) * _GOLDEN + key)
        for size in shape:
            state = _mixed(state[..., None] + np.arange(1, size + 1, dtype=np.uint64) * _GOLDEN)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


GROUP = 16
"""Normal numbers that torch makes of as many uniform ones; fewer are made two by two."""

BLOCK = 2**14
"""Numbers that are worked on at once, so that they stay in the processor's cache."""


class TorchGenerator:
    """``torch.Generator().manual_seed(seed)``: a Mersenne twister, mt19937, and its use in torch.

    Parameters
    ----------
    seed : int
        Of it the lowest 32 bits count.

    References
    ----------
    torch: aten/src/ATen/core/MT19937RNGEngine.h, CPUGeneratorImpl.cpp, TensorFactories.cpp;
    core/DistributionsHelper.h, native/cpu/DistributionTemplates.h.
    """

    def __init__(self, seed: int) -> None:
        self._stream = np.random.RandomState(seed & 0xFFFFFFFF)
        self._second: float | None = None

    def _words(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        return self._stream.randint(0, 2**32, size=count, dtype=np.uint32)

    def random(self, count: int) -> Ints:
        """Draw 32-bit numbers, shape `(count,)`."""
        return self._words(count).astype(np.int64)

    def skip(self, count: int) -> None:
        """Draw 32-bit numbers that are not used."""
        for begin in range(0, count, BLOCK):
            self._words(min(BLOCK, count - begin))

    def random64(self) -> int:
        """Draw a 64-bit number: two of 32 bits, the first in the high half."""
        high, low = self.random(2).tolist()
        return int(high) << 32 | int(low)

    def randperm(self, n: int) -> Ints:
        """``torch.randperm(n)``: place i is swapped with i + u mod (n - i); n - 1 numbers."""
        places = np.arange(n - 1)
        partners = places + self.random(n - 1) % (n - places)
        order = list(range(n))
        for place, partner in enumerate(partners.tolist()):
            order[place], order[partner] = order[partner], order[place]
        return np.array(order, dtype=np.int64)

    # Tensors -----------------------------------------------------------------------------------

    def uniform(self, bound: float, shape: tuple[int, ...], dtype: str = "float32") -> Array:
        """``torch.empty(shape, dtype=dtype).uniform_(-bound, bound)``, equal to the last bit.

        torch computes ``x (bound + bound) - bound`` and rounds once (on processors that multiply
        and add in one instruction), as ``(2 x - 1) bound`` does, since ``2 x - 1`` is exact.
        """
        values = self._unit(prod(shape), np.dtype(dtype))
        values *= 2
        values -= 1
        values *= values.dtype.type(bound)
        return values.reshape(shape)

    def skip_uniform(self, count: int, dtype: str = "float32") -> None:
        """Draw what `uniform` draws for so many elements, and leave it unused."""
        self.skip(count * (np.dtype(dtype).itemsize // 4))

    def normal(self, std: float, shape: tuple[int, ...], dtype: str = "float32") -> Array:
        """``torch.empty(shape, dtype=dtype).normal_(0, std)``.

        In float32, and of fewer than 16 elements, equal to the last bit, where torch runs on AVX2
        or AVX-512. In float64 logarithm, sine and cosine are NumPy's: 1 of 700 elements differs,
        by up to 3 units in the last place.
        """
        count, kind = prod(shape), np.dtype(dtype)
        if count < GROUP:
            return np.array([std * self._double() for _ in range(count)], kind).reshape(shape)
        values = self._unit(count, kind)
        whole = count // GROUP * GROUP
        for begin in range(0, whole, BLOCK):
            _box_muller(values[begin : min(begin + BLOCK, whole)], std)
        if count > whole:  # the last numbers of an odd count are drawn again, as one more group
            values[-GROUP:] = self._unit(GROUP, kind)
            _box_muller(values[-GROUP:], std)
        return values.reshape(shape)

    def skip_normal(self, count: int, dtype: str = "float32") -> None:
        """Draw what `normal` draws for so many elements, and leave it unused."""
        if count < GROUP:
            self.normal(1.0, (count,), dtype)
        else:
            self.skip_uniform(count + GROUP * (count % GROUP > 0), dtype)

    def _unit(self, count: int, dtype: np.dtype[np.floating]) -> Array:
        """Uniform numbers in [0, 1): 24 bits of one draw, or 53 of two."""
        if dtype.itemsize == 4:
            words = self._words(count)
            words &= np.uint32(2**24 - 1)
            values: Array = words.view(np.int32).astype(np.float32)
            values *= np.float32(2.0**-24)
            return values
        pairs = self._words(2 * count).reshape(-1, 2).astype(np.uint64)
        bits = pairs[:, 0] << np.uint64(32) | pairs[:, 1]
        bits &= np.uint64(2**53 - 1)
        return bits.astype(np.float64) * 2.0**-53

    def _double(self) -> float:
        """A normal number; they come in pairs, of which the second waits for the next call."""
        if self._second is not None:
            second, self._second = self._second, None
            return second
        turn, length = self._unit(2, np.dtype(np.float64))
        radius, angle = sqrt(-2.0 * np.log1p(-length)), 2.0 * pi * turn
        self._second = float(radius * np.sin(angle))
        return float(radius * np.cos(angle))


def hook_seed(random_seed: int, number: int) -> int:
    """The seed that torch's PowerSGD hooks draw for their number-th new Q, counted from 0."""
    stream = np.random.RandomState(random_seed)
    return int(stream.randint(1_000_000_000, size=number + 1)[-1])


def _box_muller(flat: Array, std: float) -> None:
    """Turn uniform numbers into normal ones in place: of 16, the first 8 give their radius."""
    kind = flat.dtype.type
    groups = flat.reshape(-1, 2, GROUP // 2)
    shortfall, angle = kind(1) - groups[:, 0], groups[:, 1] * kind(2 * pi)
    if kind is np.float32:
        radius, sine, cosine = _log(shortfall), *_sine_and_cosine(angle)
    else:
        radius, sine, cosine = np.log(shortfall), np.sin(angle), np.cos(angle)
    radius *= kind(-2)
    np.sqrt(radius, out=radius)
    for part, wave in enumerate((cosine, sine)):
        wave *= radius
        wave *= kind(std)
        groups[:, part] = wave


# In float32 torch takes the functions of Cephes, as avx_mathfun.h has them, with every product and
# sum that follow each other fused: rounded once, which here is a sum in float64, rounded.

LOG = (
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
"""Coefficients of the logarithm's polynomial behind the first, from the highest power on."""


def _fused(x: Array, factor: Array | np.float32, term: Array | np.float32) -> Array:
    """``x factor + term``, rounded to float32 once, written into x."""
    wide: Array = np.multiply(x, factor, dtype=np.float64)
    wide += term
    x[...] = wide
    return x


def _polynomial(x: Array, first: float, others: Sequence[float]) -> Array:
    """By Horner's rule."""
    wide, polynomial = x.astype(np.float64), np.full_like(x, first)
    for coefficient in others:
        _fused(polynomial, wide, np.float32(coefficient))
    return polynomial


def _log(x: Array) -> Array:
    """Natural logarithm of numbers above 0, float32."""
    bits = x.view(np.int32)
    exponent = ((bits >> 23) - 126).astype(np.float32)
    x = ((bits & 0x007FFFFF) | 0x3F000000).view(np.float32)  # the mantissa, from 1/2 to 1
    small = x < np.float32(0.707106781186547524)
    exponent -= small
    x = (x - np.float32(1)) + x * small
    square = x * x
    logarithm = _polynomial(x, 7.0376836292e-2, LOG)
    logarithm *= x
    _fused(logarithm, square, exponent * np.float32(-2.12194440e-4))
    x += _fused(square, np.float32(-0.5), logarithm)
    return _fused(exponent, np.float32(0.693359375), x)


def _sine_and_cosine(x: Array) -> tuple[Array, Array]:
    """Sine and cosine of angles from 0 on, float32: polynomials around the nearest pi / 2."""
    octant = (x * np.float32(1.27323954473516)).astype(np.int32)
    octant += 1
    octant &= ~1
    turned = octant.astype(np.float32)
    for part in (-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8):  # of pi / 4
        x = _fused(turned.copy(), np.float32(part), x)
    square = x * x
    cosine = _polynomial(
        square, 2.443315711809948e-5, (-1.388731625493765e-3, 4.166664568298827e-2)
    )
    cosine *= square
    _fused(cosine, square, square * np.float32(-0.5))
    cosine += 1
    sine = _polynomial(square, -1.9515295891e-4, (8.3321608736e-3, -1.6666654611e-1))
    sine *= square
    _fused(sine, x, x)
    swapped = (octant & 2) != 0
    waves = np.where(swapped, cosine, sine), np.where(swapped, sine, cosine)
    for wave, quadrant in zip(waves, (octant, octant + 2), strict=True):
        signs = wave.view(np.int32)
        signs ^= (quadrant & 4) << 29
    return waves
