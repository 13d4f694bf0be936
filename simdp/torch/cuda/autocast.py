"""Autocast on virtual devices: CUDA's lists of operators, over tensors of the CPU.

``torch.autocast("cuda")`` lets operators pass its dispatch key; the operators that torch registers
there need real devices, and are therefore replaced, one by one, while a program runs.

References
----------
The lists and rules: aten/src/ATen/autocast_mode.h and .cpp, described in
https://docs.pytorch.org/docs/stable/amp.html.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from simdp.torch.cuda.machine import VirtualMachine, block_of, machine
from simdp.torch.ranks import Patches

KEY = "AutocastCUDA"

LOWER = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu",
    "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm",
    "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)  # fmt: skip
"""Operators in 16 bit."""

FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
    "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus",
    "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim",
    "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp",
    "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d",
    "_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d",
    "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d",
    "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip
"""Operators in float32."""

FLOAT32_OUT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum",
    "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum",
    "sum.dim_IntList",
)  # fmt: skip
"""Operators that return float32, unless the script sets a dtype."""

NORMS = ("norm.Scalar", "norm.ScalarOpt_dim")
"""Operators with another overload that returns float32."""

WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put",
    "tensordot", "scatter_add",
)  # fmt: skip
"""Operators in the widest dtype of their arguments."""

BANNED = ("binary_cross_entropy",)

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

Rule = Callable[[Any, Args, Kwargs], tuple[Any, Args, Kwargs, torch.dtype | None]]
"""Returns the operator to call, its arguments, and the dtype that they are cast to, if any."""


def patch(patches: Patches) -> None:
    """Register all of them."""
    library = torch.library.Library("aten", "IMPL")
    patches.undo(library._destroy)
    rules: list[tuple[Sequence[str], Rule]] = [
        (LOWER, _lower),
        (FLOAT32, _float32),
        (FLOAT32_OUT, _float32_out),
        (NORMS, _norm),
        (WIDEST, _widest),
        (BANNED, _banned),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they are replaced
        for names, rule in rules:
            for name in names:
                operator = _operator(name)
                if operator is not None:
                    library.impl(name, _kernel(operator, rule), KEY, allow_override=True)
    patches.wrap(torch, "clear_autocast_cache", _clear_cache, machine)
    patches.wrap(torch, "set_autocast_enabled", _enable, machine)


def listen(on: bool) -> None:
    """Let the calling thread's operators pass the key, where autocast is enabled."""
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, on)


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _kernel(operator: Any, rule: Rule) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY))

    def call(*args: Any, **kwargs: Any) -> Any:
        here = machine()
        with torch._C._ExcludeDispatchKeyGuard(keys):
            if here is None:
                return operator(*args, **kwargs)
            chosen, args, kwargs, dtype = rule(operator, args, kwargs)
            if dtype is not None:
                args = tuple(cast(arg, dtype, here) for arg in args)
                kwargs = {name: cast(arg, dtype, here) for name, arg in kwargs.items()}
            return chosen(*args, **kwargs)

    return call


def _enable(here: VirtualMachine, original: Callable[..., None], *args: Any) -> None:
    if here.used and args[0] == "cpu" and args[1]:
        raise RuntimeError(
            'torch.autocast("cpu"): a script that uses devices has its tensors there, and '
            'autocast of the CPU would not know them apart; write torch.autocast("cuda").'
        )
    original(*args)


def _clear_cache(here: VirtualMachine, original: Callable[[], None]) -> None:
    here.casts.clear()
    original()


# The rules ------------------------------------------------------------------------------------


def _lower(operator: Any, args: Args, kwargs: Kwargs) -> Any:
    return operator, args, kwargs, torch.get_autocast_dtype("cuda")


def _float32(operator: Any, args: Args, kwargs: Kwargs) -> Any:
    return operator, args, kwargs, torch.float32


def _float32_out(operator: Any, args: Args, kwargs: Kwargs) -> Any:
    names = [argument.name for argument in operator._schema.arguments]
    place = names.index("dtype")
    wanted = args[place] if place < len(args) else kwargs.get("dtype")
    if wanted is None and _is_eligible(args[0]):
        later = dict(zip(names[place + 1 :], args[place + 1 :], strict=False))
        args, kwargs = args[:place], {**kwargs, "dtype": torch.float32, **later}
    return operator, args, kwargs, None


def _norm(operator: Any, args: Args, kwargs: Kwargs) -> Any:
    if not _is_eligible(args[0]):
        return operator, args, kwargs, None
    values = dict(zip([a.name for a in operator._schema.arguments], args, strict=False)) | kwargs
    chosen, args = torch.ops.aten.norm.ScalarOpt_dtype, (args[0], values.get("p", 2))
    if "dim" in values:
        chosen = torch.ops.aten.norm.ScalarOpt_dim_dtype
        args = (*args, values["dim"], values.get("keepdim", False))
    return chosen, args, {"dtype": torch.float32}, None


def _widest(operator: Any, args: Args, kwargs: Kwargs) -> Any:
    dtype = torch.get_autocast_dtype("cuda")
    if any(tensor.dtype is torch.float32 for tensor in _eligible([*args, *kwargs.values()])):
        dtype = torch.float32
    return operator, args, kwargs, dtype


def _banned(operator: Any, args: Args, kwargs: Kwargs) -> Any:
    if not _is_eligible(args[0]):
        return operator, args, kwargs, None
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. "
        "Many models use a sigmoid layer right before the binary cross entropy layer. In this case,"
        " combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits or "
        "torch.nn.BCEWithLogitsLoss; these are safe to autocast."
    )


# Casts ----------------------------------------------------------------------------------------


def _is_eligible(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    return value.dtype is not torch.float64 and block_of(value) is not None


def _eligible(values: Sequence[Any]) -> list[Any]:
    inner = [part for value in values if isinstance(value, (list, tuple)) for part in value]
    return [value for value in (*values, *inner) if _is_eligible(value)]


def cast(value: Any, dtype: torch.dtype, here: VirtualMachine) -> Any:
    """Return an argument in another dtype, if it is a tensor of a device; weights are cast once."""
    if isinstance(value, (list, tuple)):
        return type(value)([cast(inner, dtype, here) for inner in value])
    if not _is_eligible(value) or value.dtype is dtype:
        return value
    keeps = (
        dtype is not torch.float32
        and value.dtype is torch.float32
        and value.requires_grad
        and value.is_leaf
        and not value._is_view()
        and torch.is_autocast_cache_enabled()
    )
    if not keeps:
        return value.to(dtype)
    original, lowered = here.casts.get(id(value), (None, None))
    if original is not value:
        lowered = value.to(dtype)
        here.casts[id(value)] = value, lowered
    return lowered
