"""Kernels launched by an operator, and their sizes.

Counted as by simdp's layers: each tensor is read or written once by each kernel, products are two
FLOPs per multiply-add, norms read their input more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import gcd, prod
from typing import Any, NamedTuple

import torch

# Sizes --------------------------------------------------------------------------------------------


class Sizes(NamedTuple):
    """Work of one kernel on a device."""

    flops: float = 0.0  # floating-point operations; a multiply-add counts as two
    elements: float = 0.0  # real numbers read and written
    nbytes: float = 0.0  # other bytes, such as indices and masks
    width: int = 0  # greatest common divisor of the row lengths of a product; 0 for any other
    normalizes: bool = False  # a batch norm, which runs torch's own kernels in bfloat16


class OperatorKernels(NamedTuple):
    """Kernels launched by an operator."""

    kernels: tuple[Sizes, ...] = ()  # in their order; none for views
    policy: str = "promote"  # dtype policy for the roofline and autocast
    products: float = 0.0  # FLOPs of matrix products, as publications count them


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Return all tensors of an operator's arguments or results, each once."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, torch.Tensor):
            if id(one) not in seen:
                seen.add(id(one))
                yield one
        elif isinstance(one, dict):
            stack.extend(reversed(one.values()))
        elif isinstance(one, (list, tuple)):
            stack.extend(reversed(one))


def stored(tensor: torch.Tensor) -> int:
    """Return the number of stored elements of a tensor: those along an expanded axis count once."""
    found = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        found *= length if stride or not length else 1
    return found


def moved(tensors: Iterable[torch.Tensor], flops: float = 0.0) -> Sizes:
    """Return a kernel that reads or writes each of these once."""
    elements = nbytes = 0.0
    for tensor in tensors:
        if tensor.is_floating_point():
            elements += stored(tensor)
        else:
            nbytes += stored(tensor) * tensor.element_size()
    return Sizes(flops, elements, nbytes)


def mean_itemsize(values: Any) -> float:
    """Return the mean bytes of a real number in these tensors; 0 without any."""
    elements = nbytes = 0
    for tensor in tensors_in(values):
        if tensor.is_floating_point():
            count = stored(tensor)
            elements += count
            nbytes += count * tensor.element_size()
    return nbytes / elements if elements else 0.0


Args = tuple[Any, ...]
Kernels = tuple[Sizes, ...]


def _elements(tensor: torch.Tensor, times: float, flops: float = 0.0) -> Sizes:
    """Return a kernel that accesses every element of a tensor ``times`` times."""
    size = moved([tensor])
    return Sizes(flops * tensor.numel(), times * size.elements, times * size.nbytes)


# Products -----------------------------------------------------------------------------------------


def _mm_flops(args: Args, out: Any) -> float:
    return 2.0 * args[0].shape[-1] * out.numel()


def _addmm_flops(args: Args, out: Any) -> float:
    return 2.0 * args[1].shape[-1] * out.numel()


def _convolution_flops(args: Args, out: Any) -> float:
    """Count the products of every element of the smaller image with every weight of its channel."""
    image = args[0] if args[6] else out
    return 2.0 * image.numel() * prod(args[1].shape[1:])


def _convolution_backward_flops(args: Args, out: Any) -> float:
    return sum(args[10][:2]) * _convolution_work(args)


def _convolution_work(args: Args) -> float:
    slope, image, weight = args[:3]
    return 2.0 * (image if args[7] else slope).numel() * prod(weight.shape[1:])


def _attention_flops(args: Args, out: Any) -> float:
    query, key, value = args[:3]
    return 2.0 * prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _attention_backward_flops(args: Args, out: Any) -> float:
    return 2.5 * _attention_flops(args[1:], out)


def _recurrent_flops(args: Args, out: Any) -> float:
    """Count both products of every step; ``(input, weights of the input, of the state, ...)``."""
    return 2.0 * prod(args[0].shape[:2]) * (args[1].numel() + args[2].numel())


def _product(count: Callable[[Args, Any], float]) -> Callable[[Args, Any], Kernels]:
    return lambda args, out: (moved(tensors_in([args, out]), count(args, out)),)


def _product_of_rows(count: Callable[[Args, Any], float]) -> Callable[[Args, Any], Kernels]:
    """Return a product of two matrices, the last ones of the arguments, with its row lengths."""

    def kernels(args: Args, out: Any) -> Kernels:
        matrices = [one for one in args if isinstance(one, torch.Tensor) and one.dim() == 2]
        width = gcd(*(max(one.stride()) for one in (*matrices[-2:], out)))
        return (moved(tensors_in([args, out]), count(args, out))._replace(width=width),)

    return kernels


def _convolution_backward(args: Args, out: Any) -> Kernels:
    """One product for each required gradient, and the sum of the bias."""
    slope, image, weight = args[:3]
    work = _convolution_work(args)
    product = moved([slope, image, weight], work)
    bias = _elements(slope, 1, 1.0)._replace(elements=slope.numel() + slope.shape[1])
    wanted = zip(args[10], (product, product, bias), strict=True)
    return tuple(kernel for is_wanted, kernel in wanted if is_wanted)


def _pairs(query: torch.Tensor, key: torch.Tensor, is_causal: bool) -> float:
    """Return the fraction of all pairs in causal attention; half of a square is its triangle."""
    queries, keys = query.shape[-2], key.shape[-2]
    seen = queries * keys - min(queries, keys) ** 2 / 2 if is_causal else queries * keys
    return seen / (queries * keys)


def _attention(args: Args, out: Any) -> Kernels:
    query, key, value = args[:3]
    is_causal = any(one is True for one in args[3:])
    flops = _attention_flops(args, out) * _pairs(query, key, is_causal)
    return (moved([query, key, value, *tensors_in(out[:2])], flops),)


def _attention_backward(args: Args, out: Any) -> Kernels:
    is_causal = any(one is True for one in args[4:])
    flops = _attention_backward_flops(args, out) * _pairs(args[1], args[2], is_causal)
    tensors = [one for one in tensors_in(args) if one.is_floating_point()]
    return (moved([*tensors, *tensors_in(out)], flops),)


# Norms --------------------------------------------------------------------------------------------


def _batch_norm(args: Args, out: Any) -> Kernels:
    """Statistics; then the normalised input."""
    both = _elements(args[0], 1, 4.0), _elements(args[0], 2, 4.0)
    return tuple(one._replace(normalizes=_is_contiguous(args[0])) for one in both)


def _is_contiguous(images: torch.Tensor) -> bool:
    """Return whether the channels of images are not last in memory."""
    return images.dim() < 3 or images.stride(1) != 1 or images.shape[1] == 1


def _batch_norm_backward(args: Args, out: Any) -> Kernels:
    """The sums that are the parameters' gradients; then the input's."""
    contiguous = _is_contiguous(args[1])  # the input
    return tuple(one._replace(normalizes=contiguous) for one in _group_norm_backward(args, out))


def _group_norm_backward(args: Args, out: Any) -> Kernels:
    sums = _elements(args[0], 2, 4.0)
    return (sums, _elements(args[0], 3, 5.0)) if out[0] is not None else (sums,)


def _group_norm(args: Args, out: Any) -> Kernels:
    return (_elements(args[0], 1, 4.0), _elements(args[0], 2, 4.0))


def _layer_norm(args: Args, out: Any) -> Kernels:
    return (_with(_elements(args[0], 2, 8.0), args[2:4]),)


def _norm_backward(below: float, learned: float) -> Callable[[Args, Any], Kernels]:
    """The input's gradient; then weight and bias together."""

    def kernels(args: Args, out: Any) -> Kernels:
        slope, weights = args[0], [one for one in out[1:] if one is not None]
        found = [_elements(slope, 3, below)] * (out[0] is not None)
        found += [_elements(slope, 2, learned)] * bool(weights)
        return tuple(_with(kernel, weights) for kernel in found)

    return kernels


def _rms_norm(args: Args, out: Any) -> Kernels:
    return (_with(_elements(args[0], 2, 4.0), args[2:3]),)


def _with(kernel: Sizes, others: Any) -> Sizes:
    """Return a kernel that reads these too."""
    more = moved(tensors_in(others))
    return kernel._replace(
        elements=kernel.elements + more.elements, nbytes=kernel.nbytes + more.nbytes
    )


# Look-ups and scatters ----------------------------------------------------------------------------


def _look_up(args: Args, out: Any) -> Kernels:
    """Reads as much as it writes, and the indices."""
    places = [one for one in tensors_in(args[1:]) if not one.is_floating_point()]
    return (_with(_elements(out, 2), places),)


def _look_up_backward(args: Args, out: Any) -> Kernels:
    """The dense gradient is cleared before rows are added to it."""
    return (_elements(out, 1), _with(_elements(args[0], 3, 1.0), args[1]))


def _put(args: Args, out: Any) -> Kernels:
    """The values and the destination are read, added, and written."""
    places = [one for one in tensors_in(args[1:]) if not one.is_floating_point()]
    values = [one for one in tensors_in(args[1:]) if one.is_floating_point()]
    most = max([*values, *places], key=stored)
    return (_with(Sizes(stored(most), 2.0 * stored(most), 0.0), [*places, *values]),)


def _put_apart(args: Args, out: Any) -> Kernels:
    """As `_put`, into a copy."""
    return (_elements(out, 2), *_put(args, out))


def _slice_backward(args: Args, out: Any) -> Kernels:
    """Writes zeros, and the slice."""
    return (_elements(out, 1), _elements(args[0], 2))


def _classes(args: Args, out: Any) -> Kernels:
    """Reads one number of each row, and its index."""
    targets = args[1]
    return (_with(Sizes(targets.numel(), targets.numel() + 2.0, 0.0), targets),)


def _classes_backward(args: Args, out: Any) -> Kernels:
    """Writes zeros, and one number of each row."""
    targets = args[2]
    return (_elements(out, 1), _with(Sizes(targets.numel(), targets.numel(), 0.0), targets))


def _window(args: Args, out: Any) -> Kernels:
    """Writes a maximum, and its index."""
    made = out[0]
    return (moved([args[0], *out], float(made.numel() * prod(args[1]))),)


def _recurrent(args: Args, out: Any) -> Kernels:
    return (moved(tensors_in([args, out]), _recurrent_flops(args, out)),)


_BATCH_NORMS = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
    "cudnn_batch_norm",
)
_ATTENTION = "_scaled_dot_product_{}_attention"
_ATTENTIONS = [_ATTENTION.format(kind) for kind in ("flash", "efficient", "cudnn")]
_ATTENTIONS = [*_ATTENTIONS, "_scaled_dot_product_flash_attention_for_cpu"]

PRODUCTS: dict[str, tuple[str, Callable[[Args, Any], float]]] = {
    "mm": ("product", _mm_flops),
    "bmm": ("product", _mm_flops),
    "mv": ("product", _mm_flops),
    "dot": ("product", lambda args, out: 2.0 * args[0].numel()),
    "addmm": ("product", _addmm_flops),
    "baddbmm": ("product", _addmm_flops),
    "convolution": ("product", _convolution_flops),
    "convolution_backward": ("product", _convolution_backward_flops),
    "mkldnn_rnn_layer": ("product", _recurrent_flops),
    "mkldnn_rnn_layer_backward": ("product", lambda args, out: 2 * _recurrent_flops(args, out)),
    **dict.fromkeys(_ATTENTIONS, ("fused_attention", _attention_flops)),
    **{f"{name}_backward": ("fused_attention", _attention_backward_flops) for name in _ATTENTIONS},
}
"""Operators that multiply matrices: their policy in the roofline, and their FLOPs."""

SPECIAL: dict[str, Callable[[Args, Any], Kernels]] = {
    **{name: _product(count) for name, (_, count) in PRODUCTS.items()},
    **{name: _product_of_rows(PRODUCTS[name][1]) for name in ("mm", "addmm")},
    **dict.fromkeys(_ATTENTIONS, _attention),
    **{f"{name}_backward": _attention_backward for name in _ATTENTIONS},
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(_BATCH_NORMS, _batch_norm),
    "native_batch_norm_backward": _batch_norm_backward,
    "batch_norm_backward": _batch_norm_backward,
    "cudnn_batch_norm_backward": _batch_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _norm_backward(11.0, 4.0),
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _norm_backward(6.0, 2.0),
    **dict.fromkeys(("embedding", "index_select", "gather", "index"), _look_up),
    "embedding_dense_backward": _look_up_backward,
    **dict.fromkeys(("index_put_", "scatter_", "scatter_add_", "index_add_"), _put),
    **dict.fromkeys(("index_put", "scatter", "scatter_add", "index_add"), _put_apart),
    **dict.fromkeys(("slice_backward", "select_backward", "diagonal_backward"), _slice_backward),
    "nll_loss_forward": _classes,
    "nll_loss_backward": _classes_backward,
    "nll_loss2d_forward": _classes,
    "nll_loss2d_backward": _classes_backward,
    "max_pool2d_with_indices": _window,
    "max_pool3d_with_indices": _window,
}

WIDE = frozenset(
    {
        *("_softmax", "_log_softmax", "native_group_norm", "native_layer_norm", "softplus"),
        *("exp", "log", "log2", "log10", "log1p", "pow", "reciprocal", "rsqrt"),
        *("sum", "cumsum", "cumprod", "prod", "norm", "mse_loss", "l1_loss", "smooth_l1_loss"),
        *("huber_loss", "nll_loss_forward", "nll_loss2d_forward"),
        "binary_cross_entropy_with_logits",
    }
)
"""Operators that autocast runs in float32: https://pytorch.org/docs/stable/amp.html."""

WRITTEN_ONLY = frozenset(
    ["fill_", "zero_", "copy_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_"]
)
"""Operators that write their first argument without reading it."""

WORK = {
    "_softmax": 5.0,
    "_log_softmax": 5.0,
    "_softmax_backward_data": 4.0,
    "_log_softmax_backward_data": 4.0,
    "gelu": 15.0,
    "gelu_backward": 16.0,
    "silu": 5.0,
    "silu_backward": 6.0,
    "sigmoid": 4.0,
    "sigmoid_backward": 2.0,
    "tanh": 10.0,
    "tanh_backward": 3.0,
    "native_dropout": 2.0,
    "native_dropout_backward": 2.0,
    "copy_": 0.0,
    "_to_copy": 0.0,
    "clone": 0.0,
    "fill_": 0.0,
    "zero_": 0.0,
}
"""FLOPs per element of operators other than 1."""


# Launched -----------------------------------------------------------------------------------------

NOTHING = OperatorKernels()


def launched_by(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> OperatorKernels:
    """Return the kernels of an operator; empty for views, empty tensors and the like.

    ``func``, ``args`` and ``kwargs`` are as passed to
    `torch.utils._python_dispatch.TorchDispatchMode`; ``out`` are its results.
    """
    name = func.overloadpacket.__name__
    filled = {argument.name for argument in func._schema.arguments if argument.is_out}
    unfilled = {key: value for key, value in kwargs.items() if key not in filled}
    given, made = list(tensors_in([args, unfilled])), list(tensors_in(out))
    if _moves_nothing(func, name, given, made):
        return NOTHING
    if name in SPECIAL:
        kernels = SPECIAL[name](args, out)
    else:
        read = given[1:] if name in WRITTEN_ONLY else given
        count = sum(tensor.numel() for tensor in (made or given)[:1])
        if _reduces(given, made):
            count = max(tensor.numel() for tensor in given)
        kernels = (moved([*read, *made], WORK.get(name, 1.0) * count),)
    if name in PRODUCTS:
        policy, count_of = PRODUCTS[name]
        return OperatorKernels(kernels, policy, count_of(args, out))
    return OperatorKernels(kernels, "wide" if name in WIDE else "promote")


def _reduces(given: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    return bool(given and made) and made[0].numel() < max(one.numel() for one in given)


def _moves_nothing(
    func: Any, name: str, given: list[torch.Tensor], made: list[torch.Tensor]
) -> bool:
    """Return whether it only allocates, views memory differently, or does not access it."""
    if func.namespace in ("prim", "prims") or name.startswith(("empty", "new_empty", "sym_")):
        return True
    if func._schema.is_mutable:
        return False
    if not made:
        return True
    there = {tensor.untyped_storage()._cdata for tensor in given}
    return all(tensor.untyped_storage()._cdata in there for tensor in made)
