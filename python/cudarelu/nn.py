"""The ops as `torch.nn` modules.

`ReLU`, `LeakyReLU`, `Tanh`, `GELU`, `Softmax`, `Linear`, `LayerNorm` and `Sequential` are
subclasses of torch's modules of these names, with their arguments, attributes and representation,
`LinearReLU` and `LinearGELU` of its `Linear`; `replace` swaps those in a model for them::

    import cudarelu.nn

    print(cudarelu.nn.replace(model))

Inputs are tensors of the ops' dtypes, on the CPU or CUDA. Where an op has no kernel for the tensors
of a call, such as quantised, sparse or nested ones, the subclass of torch's module of the same name
runs torch's own `forward`.
"""

from __future__ import annotations

import functools
import itertools
import numbers
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import cudarelu

__all__ = [
    "GELU",
    "BiasReLU",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LinearGELU",
    "LinearReLU",
    "ReLU",
    "Replacement",
    "Sequential",
    "Softmax",
    "Tanh",
    "replace",
]


_Forward = Callable[[Any, torch.Tensor], torch.Tensor]


def _falls_back_to(theirs: type[torch.nn.Module]) -> Callable[[_Forward], _Forward]:
    """Makes a `forward` run that of torch's class where our op has no kernel for its tensors."""

    def decorate(forward: _Forward) -> _Forward:
        # TorchScript reads the source that is wrapped, since it knows no exceptions.
        @functools.wraps(forward)
        def run(self: Any, input: torch.Tensor) -> torch.Tensor:
            try:
                return forward(self, input)
            except NotImplementedError:
                return theirs.forward(self, input)

        return run

    return decorate


def _overwrite(name: str, input: torch.Tensor, **attributes: Any) -> torch.Tensor:
    """Runs the op `name` on `input` in place, and returns `input` itself."""
    # Neither ONNX nor torch.func.functionalize has an in-place form of a custom op, but both have
    # copy_. The clone is for gradients of what is overwritten: PyTorch 2.11 "exports" when it
    # compiles.
    exporting = torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()
    if exporting or _is_in_torch_func(input):
        return input.copy_(getattr(cudarelu, name)(input.clone(), **attributes))
    # The in-place op returns nothing: compilers take a returned alias for a tensor of its own.
    getattr(torch.ops.cudarelu, f"{name}_")(input, **attributes)
    return input


def _is_in_torch_func(input: torch.Tensor) -> bool:
    if torch.compiler.is_compiling():  # which cannot look into the next line
        return False
    return torch._C._functorch.is_functorch_wrapped_tensor(input)


class ReLU(torch.nn.ReLU):
    """`cudarelu.relu` as a module.

    Args:
        inplace: overwrite the input, and return it.
    """

    @_falls_back_to(torch.nn.ReLU)
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.inplace:
            return cudarelu.relu(input)
        if torch.jit.is_scripting():  # reads the source, of which it knows a part of Python
            torch.ops.cudarelu.relu_(input)
            return input
        return _overwrite("relu", input)


class LeakyReLU(torch.nn.LeakyReLU):
    """`cudarelu.leaky_relu` as a module.

    Args:
        negative_slope: the factor of negative elements.
        inplace: overwrite the input, and return it.
    """

    @_falls_back_to(torch.nn.LeakyReLU)
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.inplace:
            return cudarelu.leaky_relu(input, negative_slope=self.negative_slope)
        if torch.jit.is_scripting():
            torch.ops.cudarelu.leaky_relu_(input, negative_slope=self.negative_slope)
            return input
        return _overwrite("leaky_relu", input, negative_slope=self.negative_slope)


class Tanh(torch.nn.Tanh):
    """`cudarelu.tanh` as a module."""

    @_falls_back_to(torch.nn.Tanh)
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return cudarelu.tanh(input)


class GELU(torch.nn.GELU):
    """`cudarelu.gelu` as a module.

    Args:
        approximate: "none", or "tanh" in the place of erf.
    """

    @_falls_back_to(torch.nn.GELU)
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return cudarelu.gelu(input, approximate=self.approximate)


class Softmax(torch.nn.Softmax):
    """`cudarelu.softmax` as a module.

    The op works along the last dimension: any other is moved there and back, by copies. Unlike
    torch's, it takes no tensor of 0 dimensions.

    Args:
        dim: along which the elements sum to 1. None is a choice by the number of dimensions, with
            torch's warning.
    """

    def __init__(self, dim: int | None = -1) -> None:
        super().__init__(dim)

    @_falls_back_to(torch.nn.Softmax)
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        dim = self.dim
        if dim is None:
            warnings.warn(
                "Implicit dimension choice for softmax has been deprecated. "
                "Change the call to include dim=X as an argument.",
                stacklevel=5,  # the caller of the module
            )
            dim = 0 if input.dim() in (0, 1, 3) else 1
        if dim == -1:
            return cudarelu.softmax(input)
        return cudarelu.softmax(input.movedim(dim, -1)).movedim(-1, dim).contiguous()


class LayerNorm(torch.nn.LayerNorm):
    """`cudarelu.layer_norm` as a module.

    Args:
        normalized_shape: the size of the input's last dimension, as a number or in a list of one.
        eps: is added to the variance.
        elementwise_affine: whether there is a weight, and a bias.
        bias: whether there is a bias beside a weight.
        device: of the parameters.
        dtype: of the parameters, and of the inputs.

    Raises:
        ValueError: where `normalized_shape` has another number of dimensions, and for an `eps` that
            is not in [0, inf] or no number. By the call, RuntimeError for an input whose last
            dimension is of another size.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        if reason := _unlike_ours(self):
            raise ValueError(reason)

    @_falls_back_to(torch.nn.LayerNorm)
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if weight is None and not _has_last_size(input, self.normalized_shape[0]):
            # It raises: without a weight, the op does not know the size.
            return torch.nn.functional.layer_norm(input, self.normalized_shape)
        return cudarelu.layer_norm(input, weight, self.bias, eps=self.eps)


def _has_last_size(input: torch.Tensor, size: int) -> bool:
    if not isinstance(input, torch.Tensor) or torch.jit.is_tracing():
        return True  # sizes in a trace are no numbers
    return input.dim() > 0 and input.shape[-1] == size


_OPS = {op.name: op for op in cudarelu.ops()}


def _unlike_ours(module: torch.nn.Module) -> str | None:
    """Why a module of torch cannot run our op; None: it can."""
    theirs, op = next((k, _OPS[op]) for k, (_, op) in _OURS.items() if isinstance(module, k))
    for each in op.attributes:
        value = getattr(module, each.name)
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if each.type == "float" and not is_number:
            return f"{theirs.__name__} with {each.name} of class {type(value).__name__}"
        if wanted := each.outside(value):
            return f"{theirs.__name__} with {each.name} {value}, not in {wanted}"
    if isinstance(module, torch.nn.LayerNorm) and len(module.normalized_shape) != 1:
        shape = list(module.normalized_shape)
        return f"LayerNorm over {shape}, not over the last dimension alone"
    if isinstance(module, torch.nn.Linear):
        weight = module.weight.data
        # Other classes may have a product of their own, as quantised ones do.
        if type(weight) is not torch.Tensor:
            return f"Linear with a weight of class {type(weight).__name__}"
        if weight.dtype not in {getattr(torch, dtype) for dtype in op.dtypes}:
            return f"Linear of {weight.dtype}"
    return None


class BiasReLU(torch.nn.Module):
    """`cudarelu.bias_relu` as a module: max(x + bias, 0) * scale, with a bias of its own.

    Shapes: input [*, features], output the same.

    Args:
        features: the size of the input's last dimension, and of `bias`.
        scale: the factor after the ReLU.
        device: of `bias`.
        dtype: of `bias`, and of the inputs.
    """

    def __init__(
        self,
        features: int,
        scale: float = 1.0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.scale = scale
        self.bias = torch.nn.Parameter(torch.empty(features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the bias to zero."""
        torch.nn.init.zeros_(self.bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return cudarelu.bias_relu(input, self.bias, scale=self.scale)

    def extra_repr(self) -> str:
        return f"{self.features}, scale={self.scale}"


class Linear(torch.nn.Linear):
    """`cudarelu.linear` as a module.

    Arguments, parameters and state are those of `torch.nn.Linear`.
    """

    @_falls_back_to(torch.nn.Linear)
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return cudarelu.linear(input, self.weight, self.bias)


class LinearReLU(torch.nn.Linear):
    """`cudarelu.linear_relu` as a module: a `torch.nn.Linear` with the ReLU after it.

    Arguments, parameters and state are those of `torch.nn.Linear`.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return cudarelu.linear_relu(input, self.weight, self.bias)


class LinearGELU(torch.nn.Linear):
    """`cudarelu.linear_gelu` as a module: a `torch.nn.Linear` with the GELU after it.

    Parameters and state are those of `torch.nn.Linear`.

    Args:
        in_features, out_features, bias, device, dtype: those of `torch.nn.Linear`.
        approximate: that of `torch.nn.GELU`.
    """

    approximate: str

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        approximate: str = "none",
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.approximate = approximate

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return cudarelu.linear_gelu(input, self.weight, self.bias, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, approximate={self.approximate!r}"


class Sequential(torch.nn.Sequential):
    """`torch.nn.Sequential` that runs a `Linear` of ours and the ReLU or GELU after it as one op.

    The modules stay what they are: called alone, each does its own part. A pair with a subclass of
    one of them, a hook, a `forward` of its own, or compiled apart runs as two; a tracer that takes
    modules as leaves sees the op.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():
            for module in self:
                input = module(input)
            return input
        modules = list(self)
        while modules:
            module = modules.pop(0)
            if modules and _is_pair(module, modules[0]):
                input = _run_pair(module, modules.pop(0), input)
            else:
                input = module(input)
        return input


def _run_pair(linear: Any, activation: torch.nn.Module, input: torch.Tensor) -> torch.Tensor:
    try:
        return _run_fused(linear, activation, input)
    except NotImplementedError:  # each has its own way out
        return activation(linear(input))


def _run_fused(linear: Any, activation: torch.nn.Module, input: torch.Tensor) -> torch.Tensor:
    if isinstance(activation, torch.nn.GELU):
        approximate = activation.approximate
        return cudarelu.linear_gelu(input, linear.weight, linear.bias, approximate=approximate)
    return cudarelu.linear_relu(input, linear.weight, linear.bias)


def _is_pair(linear: torch.nn.Module, activation: torch.nn.Module) -> bool:
    """Whether nobody can tell that two modules run as one."""
    return (
        type(linear) is Linear
        and type(activation) in (torch.nn.ReLU, ReLU, torch.nn.GELU, GELU)
        and not (_is_observed(linear) or _is_observed(activation))
    )


def _is_observed(module: torch.nn.Module) -> bool:
    """Whether somebody sees what goes in and out of a module, or has changed that."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or torch.nn.modules.module._has_any_global_hook()
        or module._compiled_call_impl is not None
        or "forward" in module.__dict__
    )


# Torch's class: ours, and the op that it runs.
_OURS: dict[type[torch.nn.Module], tuple[type[torch.nn.Module], str]] = {
    torch.nn.ReLU: (ReLU, "relu"),
    torch.nn.LeakyReLU: (LeakyReLU, "leaky_relu"),
    torch.nn.Tanh: (Tanh, "tanh"),
    torch.nn.GELU: (GELU, "gelu"),
    torch.nn.Softmax: (Softmax, "softmax"),
    torch.nn.Linear: (Linear, "linear"),
    torch.nn.LayerNorm: (LayerNorm, "layer_norm"),
}


@dataclass(frozen=True)
class Replacement:
    """What `replace` did: modules by qualified name, as `named_modules` has it."""

    swapped: dict[str, str]  # and the class, "ReLU"
    left: dict[str, str]  # and why

    def __str__(self) -> str:
        lines = []
        for title, modules in (("swapped", self.swapped), ("left", self.left)):
            lines.append(f"{title}: {len(modules)}")
            lines += [f"  {name or '(the model)'}: {text}" for name, text in modules.items()]
        return "\n".join(lines)


def replace(model: torch.nn.Module) -> Replacement:
    """Makes torch's modules of the classes above in a model run our ops.

    A Sequential with a Linear and the ReLU or GELU after it becomes a `Sequential` of ours, which
    runs the two as one op.

    Each module stays the object that it is, the model itself too, and only its class changes:
    hooks, mode, sharing, and references from elsewhere hold. Left as they are: subclasses of these
    classes, among them parametrized modules, modules with a `forward` of their own, LayerNorm over
    several dimensions, Linear with a weight that is quantised, complex or distributed, and modules
    with an attribute that the op does not take: a slope that is a bool or a tensor, a negative eps.

    A swapped module runs torch's own `forward` in each call whose tensors the op has no kernel for:
    ReLU on a quantised tensor, or LayerNorm with float32 parameters on a bfloat16 one. There
    torch.compile breaks the graph.

    What torch.compile made of the model before is compiled again.

    Args:
        model: is changed.

    Returns:
        What was swapped, and what was left; a shared module has a line for each of its names.
    """
    swapped: dict[str, str] = {}
    left: dict[str, str] = {}
    classes: dict[torch.nn.Module, type] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        found = classes.setdefault(module, type(module))
        if found in _OURS and "forward" in vars(module):
            left[name] = f"{found.__name__} with a forward of its own"
        elif found in _OURS and (reason := _unlike_ours(module)):
            left[name] = reason
        elif found in _OURS:
            module.__class__, _ = _OURS[found]
            swapped[name] = found.__name__
        elif isinstance(module, tuple(_OURS)) and found.__module__ != __name__:
            left[name] = f"{found.__name__}, a subclass"
    for name, module in model.named_modules(remove_duplicate=False):
        if classes[module] is not torch.nn.Sequential or "forward" in vars(module):
            continue
        if pairs := _pairs(module):
            module.__class__ = Sequential
            swapped[name] = f"Sequential, with {', '.join(pairs)} fused"
    return Replacement(swapped, left)


def _pairs(sequence: torch.nn.Sequential) -> list[str]:
    """The names of a Sequential's modules that run as one: "0 + 1"."""
    # `named_children` would leave out a module that is in it before.
    following = itertools.pairwise(sequence._modules.items())
    return [f"{a} + {b}" for (a, first), (b, second) in following if _is_pair(first, second)]
