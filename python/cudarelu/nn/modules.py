"""The modules of `torch.nn` that run one op, or an op for two of them."""

from __future__ import annotations

import functools
import numbers
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import cudarelu
from cudarelu._pytorch.functions import op_of

_Forward = Callable[[Any, torch.Tensor], torch.Tensor]


def _falls_back_to(theirs: type[torch.nn.Module]) -> Callable[[_Forward], _Forward]:
    """Makes `forward` run the method of torch's class if our op has no kernel for the tensors."""

    def decorate(forward: _Forward) -> _Forward:
        # TorchScript has no exceptions, and compiles the wrapped function instead.
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
    # Neither ONNX nor torch.func.functionalize supports in-place custom ops, but both support
    # copy_. The clone keeps the gradient of an overwritten tensor correct: in PyTorch 2.11,
    # is_exporting() is also true in torch.compile.
    exporting = torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()
    if exporting or _is_in_torch_func(input):
        return input.copy_(getattr(cudarelu, name)(input.clone(), **attributes))
    # The in-place op returns nothing, since compilers treat a returned alias as a new tensor.
    getattr(torch.ops.cudarelu, f"{name}_")(input, **attributes)
    return input


def _is_in_torch_func(input: torch.Tensor) -> bool:
    if torch.compiler.is_compiling():  # compilers cannot trace the call below
        return False
    return torch._C._functorch.is_functorch_wrapped_tensor(input)


class ReLU(torch.nn.ReLU):
    """`cudarelu.relu` as a module.

    Args:
        inplace: whether to overwrite the input and return it.
    """

    @_falls_back_to(torch.nn.ReLU)
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.inplace:
            return cudarelu.relu(input)
        if torch.jit.is_scripting():  # TorchScript cannot compile `_overwrite`
            torch.ops.cudarelu.relu_(input)
            return input
        return _overwrite("relu", input)


class LeakyReLU(torch.nn.LeakyReLU):
    """`cudarelu.leaky_relu` as a module.

    Args:
        negative_slope: the factor of negative elements.
        inplace: whether to overwrite the input and return it.
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
        approximate: "none" computes with erf, "tanh" with the approximation by tanh.
    """

    @_falls_back_to(torch.nn.GELU)
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return cudarelu.gelu(input, approximate=self.approximate)


class Softmax(torch.nn.Softmax):
    """`cudarelu.softmax` as a module.

    The op works along the last dimension. Any other dimension is moved there and back, which copies
    the tensor. Unlike torch's module, it does not accept a tensor of 0 dimensions.

    Args:
        dim: the dimension along which the elements sum to 1. None chooses it by the number of
            dimensions and warns, as torch does.
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
        eps: added to the variance.
        elementwise_affine: whether there is a weight, and a bias if `bias` is true.
        bias: whether there is a bias in addition to the weight.
        device: the device of the parameters.
        dtype: the dtype of the parameters and of the inputs.

    Raises:
        ValueError: if `normalized_shape` has more than one dimension, or `eps` is not a number in
            [0, inf]. A call raises RuntimeError if the last dimension of the input has another
            size.
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
        if reason := unlike_ours(self):
            raise ValueError(reason)

    @_falls_back_to(torch.nn.LayerNorm)
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if weight is None and not _has_last_size(input, self.normalized_shape[0]):
            # This raises the error. Without a weight, our op does not know the expected size.
            return torch.nn.functional.layer_norm(input, self.normalized_shape)
        return cudarelu.layer_norm(input, weight, self.bias, eps=self.eps)


def _has_last_size(input: torch.Tensor, size: int) -> bool:
    if not isinstance(input, torch.Tensor) or torch.jit.is_tracing():
        return True  # sizes in a trace are not numbers
    return input.dim() > 0 and input.shape[-1] == size


class BiasReLU(torch.nn.Module):
    """`cudarelu.bias_relu` as a module: max(x + bias, 0) * scale, where bias is a parameter.

    Shapes: input [*, features], output the same.

    Args:
        features: the size of the input's last dimension and of `bias`.
        scale: the factor after the ReLU.
        device: the device of `bias`.
        dtype: the dtype of `bias` and of the inputs.
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
        in_features, out_features, bias, device, dtype: as in `torch.nn.Linear`.
        approximate: as in `torch.nn.GELU`.
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


class Op(torch.nn.Module):
    """Any op as a module without parameters: `cudarelu.nn.Op(cudarelu.relu_scale, scale=2.0)`.

    Shapes and dtypes are those of the op. A call takes the op's inputs, by position; an absent one
    is None. `torch.jit.trace` accepts the module, but `torch.jit.script` does not, since the number
    of inputs depends on the op.

    Args:
        function: the function of the op, an attribute of `cudarelu` or of an `OpModule`.
        attributes: the op's attributes; those with a default may be left out.

    Raises:
        TypeError: if `function` is not the function of an op.
        Exception: for attributes that the op does not accept, what a call with them raises for
            tensors.
    """

    def __init__(self, function: Callable[..., Any], **attributes: float | int | str) -> None:
        super().__init__()
        inputs = _smallest_inputs(op_of(function), attributes)
        if reserved := inputs.keys() & attributes:
            raise TypeError(f"{min(reserved)} is an input of the op, not an attribute")
        function(**inputs, **attributes)
        self.function = function
        self.attributes = attributes

    def forward(self, *inputs: torch.Tensor | None) -> Any:
        return self.function(*inputs, **self.attributes)

    def extra_repr(self) -> str:
        given = (f"{name}={value!r}" for name, value in self.attributes.items())
        return ", ".join([op_of(self.function).qualified_name, *given])


def _smallest_inputs(op: cudarelu.OpInfo, attributes: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Inputs without data, with the size 1 for every name, to check a call."""
    sizes = dict.fromkeys(op.named_dimensions, 1)
    sizes |= {each.name: each.default for each in op.attributes} | dict(attributes)
    rows = (1,) * op.fewest_rows(sizes)
    sizes = op.with_elements(rows, sizes)
    return {
        each.name: torch.empty(
            each.shape(rows, sizes),
            dtype=getattr(torch, next(x for x in (*op.dtypes_of(each), *op.dtypes) if x != "T")),
            device="meta",
        )
        for each in op.inputs
        if not each.optional
    }


class Sequential(torch.nn.Sequential):
    """A `torch.nn.Sequential` that runs our `Linear` and the ReLU or GELU after it as one op.

    The modules do not change: each one computes only its own part if it is called alone. A pair is
    not fused if one of the modules is a subclass, has a hook or its own `forward`, or was compiled
    separately. A tracer that treats modules as leaves sees the fused op.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():
            for module in self:
                input = module(input)
            return input
        modules = list(self)
        while modules:
            module = modules.pop(0)
            if modules and is_pair(module, modules[0]):
                input = run_pair(module, modules.pop(0), input)
            else:
                input = module(input)
        return input


def run_pair(linear: Any, activation: torch.nn.Module, input: torch.Tensor) -> torch.Tensor:
    try:
        if isinstance(activation, torch.nn.GELU):
            approximate = activation.approximate
            return cudarelu.linear_gelu(input, linear.weight, linear.bias, approximate=approximate)
        return cudarelu.linear_relu(input, linear.weight, linear.bias)
    except NotImplementedError:  # each module can fall back to torch
        return activation(linear(input))


def is_pair(linear: torch.nn.Module, activation: torch.nn.Module) -> bool:
    """Whether two modules can run as one op without a visible difference."""
    return (
        type(linear) is Linear
        and type(activation) in (torch.nn.ReLU, ReLU, torch.nn.GELU, GELU)
        and not (_is_observed(linear) or _is_observed(activation))
    )


def _is_observed(module: torch.nn.Module) -> bool:
    """Whether a hook, a compiled call or a replaced `forward` takes part in a module's calls."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or torch.nn.modules.module._has_any_global_hook()
        or module._compiled_call_impl is not None
        or "forward" in module.__dict__
    )


# For each class of torch: our class, and the op that it runs.
OF_ONE_OP: dict[type[torch.nn.Module], tuple[type[torch.nn.Module], str]] = {
    torch.nn.ReLU: (ReLU, "relu"),
    torch.nn.LeakyReLU: (LeakyReLU, "leaky_relu"),
    torch.nn.Tanh: (Tanh, "tanh"),
    torch.nn.GELU: (GELU, "gelu"),
    torch.nn.Softmax: (Softmax, "softmax"),
    torch.nn.Linear: (Linear, "linear"),
    torch.nn.LayerNorm: (LayerNorm, "layer_norm"),
}
_OPS = {op.name: op for op in cudarelu.ops()}


def unlike_ours(module: torch.nn.Module) -> str | None:
    """The reason why a module of torch cannot run our op; None if it can."""
    theirs, op = next((k, _OPS[op]) for k, (_, op) in OF_ONE_OP.items() if isinstance(module, k))
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
        return weight_unlike_ours("Linear", module.weight)
    return None


def weight_unlike_ours(owner: str, weight: torch.Tensor) -> str | None:
    """The reason why `cudarelu.linear` cannot take a weight of a module, which `owner` names."""
    # Other classes, such as quantised ones, may define their own product.
    if type(weight.data) is not torch.Tensor:
        return f"{owner} with a weight of class {type(weight.data).__name__}"
    if weight.dtype not in {getattr(torch, dtype) for dtype in _OPS["linear"].dtypes}:
        return f"{owner} of {weight.dtype}"
    return None
