"""Kernels launched by an operator, and their sizes.

Counted as by simdp's layers: each tensor is read or written once by each kernel, products are two
FLOPs per multiply-add, norms read their input more than once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from math import gcd, log2, prod
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

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
    arithmetic: str = ""  # of products whose result has another dtype: float8, or int8
    is_known: bool = True  # False for an operator that only counts as elementwise


def as_list(tensors: Any) -> list[Any]:
    """Return a list of tensors from some, or from a single one."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Return all tensors of an operator's arguments or results, each once."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, torch.Tensor):
            if id(value) not in seen:
                seen.add(id(value))
                yield value
        elif isinstance(value, dict):
            stack.extend(reversed(value.values()))
        elif isinstance(value, (list, tuple)):
            stack.extend(reversed(value))


def stored(tensor: torch.Tensor) -> int:
    """Return the number of stored elements of a tensor: those along an expanded axis count once."""
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(length for length, stride in axes if stride or not length)


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


def _grouped_flops(args: Args, out: Any) -> float:
    """Count the rows of all groups once; of two matrices, groups divide the inner axis."""
    groups = out.shape[0] if args[0].dim() == args[1].dim() == 2 else 1
    return _mm_flops(args, out) / groups


def _sparse_flops(args: Args, out: Any) -> float:
    """Count a product with a pruned matrix as a dense one, as publications do."""
    pruned = next(arg for arg in reversed(args) if _is_matrix(arg))
    return 2.0 * pruned.shape[0] * out.numel()


def _is_matrix(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 2


def _trilinear_flops(args: Args, out: Any) -> float:
    """Count every triple of a bilinear layer once; axes of length 1 are inserted first."""
    shapes = []
    for tensor, places in zip(args[:3], args[3:6], strict=True):
        shape = list(tensor.shape)
        for place in sorted(places):
            shape.insert(place, 1)
        shapes.append(shape)
    return 2.0 * prod(map(max, zip(*shapes, strict=True)))


def _heads_flops(args: Args, out: Any, weights: tuple[int, ...] = (5, 7), at: int = 1) -> float:
    """Count a fused layer: every token with its weights, and with every key of its sequence."""
    tokens, width, keys = prod(args[0].shape[:-1]), args[0].shape[-1], args[at].shape[-2]
    return 2.0 * tokens * (sum(args[place].numel() for place in weights) + 2 * keys * width)


def _encoder_flops(args: Args, out: Any) -> float:
    return _heads_flops(args, out, (3, 5, 14, 16), 0)


def _convolution_flops(args: Args, out: Any) -> float:
    """Count the products of every element of the smaller image with every weight of its channel."""
    return _direct_flops(args[1], args[0] if args[6] else out)


def _direct_flops(weight: torch.Tensor, image: torch.Tensor) -> float:
    return 2.0 * image.numel() * prod(weight.shape[1:])


def _convolution_work(args: Args) -> float:
    slope, image, weight = args[:3]
    return 2.0 * (image if args[7] else slope).numel() * prod(weight.shape[1:])


def _attention_flops(args: Args, out: Any) -> float:
    query, key, value = args[:3]
    return 2.0 * prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _attention_backward_flops(args: Args, out: Any) -> float:
    """Count the scores again, and two products each of the gradients of values and of scores."""
    query, key, value = args[1:4]
    widths = 3 * query.shape[-1] + 2 * value.shape[-1]
    return 2.0 * prod(query.shape[:-1]) * key.shape[-2] * widths


def _recurrent_flops(args: Args, out: Any) -> float:
    """Count both products of every step; ``(input, weights of the input, of the state, ...)``."""
    return 2.0 * prod(args[0].shape[:2]) * (args[1].numel() + args[2].numel())


def _cudnn_recurrent_flops(args: Args, out: Any) -> float:
    """Count the products of every step; ``(input, weights of all layers, ...)``."""
    weights = sum(weight.numel() for weight in args[1] if weight.dim() == 2)
    return 2.0 * prod(args[0].shape[:2]) * weights


def _product(count: Callable[[Args, Any], float]) -> Callable[[Args, Any], Kernels]:
    return lambda args, out: (moved(tensors_in([args, out]), count(args, out)),)


def _product_of_rows(count: Callable[[Args, Any], float]) -> Callable[[Args, Any], Kernels]:
    """Return a product of two matrices, the last ones of the arguments, with its row lengths."""

    def kernels(args: Args, out: Any) -> Kernels:
        matrices = [arg for arg in args if _is_matrix(arg)]
        width = gcd(*(max(matrix.stride()) for matrix in (*matrices[-2:], out)))
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
    is_causal = any(arg is True for arg in args[3:])
    flops = _attention_flops(args, out) * _pairs(query, key, is_causal)
    return (moved([query, key, value, *tensors_in(out[:2])], flops),)


def _attention_backward(args: Args, out: Any) -> Kernels:
    is_causal = any(arg is True for arg in args[4:])
    flops = _attention_backward_flops(args, out) * _pairs(args[1], args[2], is_causal)
    tensors = [tensor for tensor in tensors_in(args) if tensor.is_floating_point()]
    return (moved([*tensors, *tensors_in(out)], flops),)


# Norms --------------------------------------------------------------------------------------------


def _batch_norm(args: Args, out: Any) -> Kernels:
    return _normalising(_group_norm(args, out), args[0])


def _batch_norm_backward(args: Args, out: Any) -> Kernels:
    return _normalising(_group_norm_backward(args, out), args[1])


def _normalising(kernels: Kernels, images: torch.Tensor) -> Kernels:
    """Return kernels of a batch norm: torch's own if the channels of images are not last."""
    own = images.dim() < 3 or images.stride(1) != 1 or images.shape[1] == 1
    return tuple(kernel._replace(normalizes=own) for kernel in kernels)


def _group_norm_backward(args: Args, out: Any) -> Kernels:
    """The sums that are the parameters' gradients; then the input's."""
    sums = _elements(args[0], 2, 4.0)
    return (sums, _elements(args[0], 3, 5.0)) if out[0] is not None else (sums,)


def _group_norm(args: Args, out: Any) -> Kernels:
    """Statistics; then the normalised input."""
    return (_elements(args[0], 1, 4.0), _elements(args[0], 2, 4.0))


def _norm_backward(below: float, learned: float) -> Callable[[Args, Any], Kernels]:
    """The input's gradient; then weight and bias together."""

    def kernels(args: Args, out: Any) -> Kernels:
        slope, weights = args[0], [weight for weight in out[1:] if weight is not None]
        launched = [_elements(slope, 3, below)] * (out[0] is not None)
        launched += [_elements(slope, 2, learned)] * bool(weights)
        return tuple(_with(kernel, weights) for kernel in launched)

    return kernels


def _with(kernel: Sizes, others: Any) -> Sizes:
    """Return a kernel that reads these too."""
    more = moved(tensors_in(others))
    return kernel._replace(
        elements=kernel.elements + more.elements, nbytes=kernel.nbytes + more.nbytes
    )


# Look-ups and scatters ----------------------------------------------------------------------------


def _look_up(args: Args, out: Any) -> Kernels:
    """Reads as much as it writes, and the indices."""
    places = [tensor for tensor in tensors_in(args[1:]) if not tensor.is_floating_point()]
    return (_with(_elements(out, 2), places),)


def _look_up_backward(args: Args, out: Any) -> Kernels:
    """The dense gradient is cleared before rows are added to it."""
    return (_elements(out, 1), _with(_elements(args[0], 3, 1.0), args[1]))


def _put(args: Args, out: Any) -> Kernels:
    """The values and the destination are read, added, and written."""
    others = list(tensors_in(args[1:]))
    most = max(map(stored, others))
    return (_with(Sizes(most, 2.0 * most, 0.0), others),)


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


def _fft(args: Args, out: Any) -> Kernels:
    """Count ``5 n log2 n`` FLOPs of n complex numbers, and half of it of real ones."""
    whole = max(args[0], out, key=torch.Tensor.numel)
    depth = log2(max(prod(whole.shape[axis] for axis in args[1]), 2))
    flops = 5.0 if args[0].is_complex() and out.is_complex() else 2.5
    return (moved(tensors_in([args, out]), flops * whole.numel() * depth),)


def _distances(args: Args, out: Any) -> Kernels:
    """Count a difference, its power and a sum of every pair of rows."""
    return (moved(tensors_in([args, out]), 3.0 * args[0].shape[-1] * out.numel()),)


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
_ATTENTIONS += [
    f"{_ATTENTION.format('flash')}_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
]
_LIKE_MM = (
    *("mm", "bmm", "mv", "_int_mm", "_scaled_mm", "_scaled_mm_v2", "linear", "mkldnn_linear"),
    *("_weight_int4pack_mm", "_weight_int8pack_mm", "_mixed_dtypes_linear"),
)
_LIKE_ADDMM = ("addmm", "_addmm_activation", "baddbmm", "addmv")
_GROUPED = ("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2")
_SPARSE = ("_cslt_sparse_mm", "_sparse_semi_structured_mm", "_sparse_semi_structured_addmm")
_CONVOLUTIONS = ("convolution", "_convolution", "convolution_overrideable")
_DIRECT = ("cudnn_convolution", "mkldnn_convolution", "miopen_convolution", "_slow_conv2d_forward")
_CELLS, _BACK = ("_cudnn_rnn", "miopen_rnn"), ("_cudnn_rnn_backward", "miopen_rnn_backward")

PRODUCTS: dict[str, tuple[str, Callable[[Args, Any], float]]] = {
    **dict.fromkeys(_LIKE_MM, ("product", _mm_flops)),
    **dict.fromkeys(_LIKE_ADDMM, ("product", lambda args, out: _mm_flops(args[1:], out))),
    **dict.fromkeys(_GROUPED, ("product", _grouped_flops)),
    **dict.fromkeys(_SPARSE, ("product", _sparse_flops)),
    **dict.fromkeys(("dot", "vdot"), ("product", lambda args, out: 2.0 * args[0].numel())),
    "addbmm": ("product", lambda args, out: 2.0 * args[1].numel() * args[2].shape[-1]),
    "_trilinear": ("product", _trilinear_flops),
    **dict.fromkeys(_CONVOLUTIONS, ("product", _convolution_flops)),
    **dict.fromkeys(_DIRECT, ("product", lambda args, out: _direct_flops(args[1], out))),
    "convolution_backward": (
        "product",
        lambda args, out: sum(args[10][:2]) * _convolution_work(args),
    ),
    "mkldnn_rnn_layer": ("product", _recurrent_flops),
    "mkldnn_rnn_layer_backward": ("product", lambda args, out: 2 * _recurrent_flops(args, out)),
    **dict.fromkeys(_CELLS, ("product", _cudnn_recurrent_flops)),
    **dict.fromkeys(_BACK, ("product", lambda a, o: 2 * _cudnn_recurrent_flops(a, o))),
    "_native_multi_head_attention": ("product", _heads_flops),
    "_transformer_encoder_layer_fwd": ("product", _encoder_flops),
    **dict.fromkeys(_ATTENTIONS, ("fused_attention", _attention_flops)),
    **{f"{name}_backward": ("fused_attention", _attention_backward_flops) for name in _ATTENTIONS},
}
"""Operators that multiply matrices: their policy in the roofline, and their FLOPs.

Others that `torch.utils.flop_counter` knows have its formulas.
"""

ARITHMETIC = {
    "_int_mm": "int8",
    **dict.fromkeys(("_scaled_mm", "_scaled_mm_v2", *_GROUPED[1:]), "float8"),
}
"""Arithmetic of products that is not the dtype of their result."""

CAUSAL = ("is_causal", "custom_mask_type")
"""Arguments of attention that leave the triangle of a square."""

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
    "native_layer_norm": lambda args, out: (_with(_elements(args[0], 2, 8.0), args[2:4]),),
    "native_layer_norm_backward": _norm_backward(11.0, 4.0),
    "_fused_rms_norm": lambda args, out: (_with(_elements(args[0], 2, 4.0), args[2:3]),),
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
    **dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), _fft),
    "_cdist_forward": _distances,
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


# Elementwise --------------------------------------------------------------------------------------

NAMESPACES = frozenset(["aten", "fsdp"])
"""Namespaces of torch's own operators; those of others may do anything."""

_TAGS = {torch.Tag.core, torch.Tag.pointwise, torch.Tag.reduction}

_PLAIN = re.compile(
    r"loss|cross_entropy|norm|softmax|pool|upsample|pad|foreach|fused_(?:adam|adagrad|sgd)|_amp_|"
    r"bernoulli|uniform|random|exponential|rand|zero|ones|full|fill|empty|arange|eye|linspace|"
    r"copy|clone|stack|split|cat|unfold|to_dense|detach|roll|shuffle|repeat|tri[lu]|diag|resize|"
    r"index|take|put|masked|cum(?:max|min|prod|sum)|unique|bincount|searchsorted|bucketize|isin|"
    r"multinomial|embedding|complex|conj|trace|swish|[gs]lu|prelu|rrelu|dropout|_cell|add_relu|"
    r"addr_?$|log_sigmoid|median|mode|kthvalue|im2col|quantize|is_all_true|is_any_true|slice"
)
"""Parts of names of torch's operators without a tag that move their tensors once."""


@cache
def _is_elementwise(func: Any) -> bool:
    """Return whether an operator without a formula is one that moves its tensors once, or few."""
    if func.namespace not in NAMESPACES:
        return False
    packet = func.overloadpacket
    plain = packet.__name__.removesuffix("_").removesuffix("_backward")
    packets = [packet, getattr(torch.ops.aten, plain, packet)]
    operators = [getattr(family, name) for family in packets for name in family.overloads()]
    tags = {tag for operator in operators for tag in operator.tags}
    return bool(tags & _TAGS) or _PLAIN.search(packet.__name__) is not None


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
    inputs, made = list(tensors_in([args, unfilled])), list(tensors_in(out))
    if _moves_nothing(func, name, inputs, made):
        return NOTHING
    plain = name.removesuffix("_")
    if plain in PRODUCTS:
        policy, count_of = PRODUCTS[plain]
        kernels, products = SPECIAL[plain](args, out), count_of(args, out)
        return OperatorKernels(kernels, policy, products, ARITHMETIC.get(plain, ""))
    if func.overloadpacket in flop_registry:
        products = float(flop_registry[func.overloadpacket](*args, **kwargs, out_val=out))
        policy = "fused_attention" if "attention" in name else "product"
        named = zip(func._schema.arguments, args, strict=False)
        is_causal = any(value for argument, value in named if argument.name in CAUSAL)
        work = products / 2 if is_causal else products
        return OperatorKernels((moved([*inputs, *made], work),), policy, products)
    policy = "wide" if name in WIDE else "promote"
    if name in SPECIAL:
        return OperatorKernels(SPECIAL[name](args, out), policy)
    read = inputs[1:] if name in WRITTEN_ONLY else inputs
    counted = [*made[:1], *inputs] if made else inputs[:1]
    count = max((tensor.numel() for tensor in counted), default=0)
    kernels = (moved([*read, *made], WORK.get(name, 1.0) * count),)
    return OperatorKernels(kernels, policy, is_known=_is_elementwise(func))


def _moves_nothing(
    func: Any, name: str, inputs: list[torch.Tensor], made: list[torch.Tensor]
) -> bool:
    """Return whether it only allocates, views memory differently, or does not access it."""
    if func.namespace in ("prim", "prims") or name.startswith(("empty", "new_empty", "sym_")):
        return True
    if func._schema.is_mutable:
        return False
    if not made:
        return True
    there = {tensor.untyped_storage()._cdata for tensor in inputs}
    return all(tensor.untyped_storage()._cdata in there for tensor in made)
