"""A second op module, `my`: the built library, or a stand-in for it where it has not been built."""

from __future__ import annotations

import functools

import pytest
import torch

import cudarelu
import cudarelu.ort
from cudarelu import _C
from support.ort_infer import BUILD

LIBRARY = BUILD / "libmy_ops.so"
NEEDS_LIBRARY = pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} has not been built")


@functools.cache
def my() -> cudarelu.OpModule:
    """The module, with an op `swish` that has an attribute `beta`."""
    if not LIBRARY.exists():
        _stand_in()
    return cudarelu.load_library(LIBRARY)


def _parameter(name: str, *dims: str) -> dict:
    fields = ("stand_in", "number", "extreme", "offsets_into")
    declared = {"name": name, "dtype": "T", "dims": dims, "optional": False, "positive": False}
    return declared | dict.fromkeys(fields)


BETA = {"name": "beta", "type": "float", "labels": (), "required": False, "default": 1.0}
BETA |= {"lowest": 0.0, "highest": None}


def _op(name: str, op_type: str, inputs: list, output: dict, attributes: list, **fields) -> dict:
    parameters = ", ".join(each["name"] for each in inputs)
    return {
        "namespace": "my",
        "name": name,
        "signature": f"{name}({parameters})",
        "summary": f"The op {name}.",
        "inputs": tuple(inputs),
        "attributes": tuple(attributes),
        "outputs": (output,),
        "elementwise": all(each["dims"] == ("*",) for each in inputs),
        "dtypes": ("float32", "float64"),
        "onnx": {"domain": "my", "op_type": op_type, "alias": None},
        "written_out": "",
        "gradient": "",
        "gradient_ops": (),
        "autocast": "promote",
        "in_place": "",
    } | fields


BETA_OF = "beta_f = Constant<value_float: float = @beta>() b = CastLike(beta_f, x) "
OPS = [
    _op(
        "swish",
        "Swish",
        [_parameter("x", "*")],
        _parameter("y", "*"),
        [BETA],
        definition=f"{BETA_OF} bx = Mul(b, x) s = Sigmoid(bx) y = Mul(x, s)",
        gradient="x = swish_backward(grad_y, x, beta)",
        gradient_ops=(("x", "my::swish_backward"),),
        in_place="y = x",
    ),
    _op(
        "swish_backward",
        "SwishBackward",
        [_parameter("grad_y", "*"), _parameter("x", "*")],
        _parameter("grad_x", "*"),
        [BETA],
        definition=f"""{BETA_OF} bx = Mul(b, x) s = Sigmoid(bx) y = Mul(bx, s) sy = Mul(s, y)
            sum = Add(s, y) d = Sub(sum, sy) grad_x = Mul(grad_y, d)""",
    ),
    _op(
        "shift",
        "Shift",
        [_parameter("x", "*", "c"), _parameter("bias", "c")],
        _parameter("y", "*", "c"),
        [],
        definition="y = Add(x, bias)",
        gradient="x = cudarelu::scale(grad_y, 1); bias = cudarelu::sum_rows(grad_y)",
        gradient_ops=(("bias", "cudarelu::sum_rows"),),
    ),
]


def _swish(x, *, beta=1.0):
    if beta < 0:
        raise RuntimeError(f"swish: beta must be in [0, inf], not {beta:g}")
    return x * torch.sigmoid(beta * x)


def _swish_(x, *, beta=1.0):
    x.copy_(_swish(x, beta=beta))


def _swish_backward(grad_y, x, *, beta=1.0):
    s = torch.sigmoid(beta * x)
    return grad_y * (s + beta * x * s - s * beta * x * s)


def _function(name: str):
    """In Python; that of a library is built in."""

    def function(*inputs, **attributes):
        return getattr(torch.ops.my, name)(*inputs, **attributes)

    function.__name__ = name
    return function


def _stand_in() -> None:
    """Makes `cudarelu._C` find the module, with ops in Python."""
    library = torch.library.Library("my", "DEF")
    _stand_in.library = library
    library.define("swish(Tensor x, *, float beta=1.0) -> Tensor")
    library.define("swish_(Tensor(a!) x, *, float beta=1.0) -> ()")
    library.define("swish_backward(Tensor grad_y, Tensor x, *, float beta=1.0) -> Tensor")
    library.define("shift(Tensor x, Tensor bias) -> Tensor")
    for name, run in (
        ("swish", _swish),
        ("swish_backward", _swish_backward),
        ("shift", lambda x, bias: x + bias),
        ("swish_", _swish_),
    ):
        library.impl(name, run, "CompositeExplicitAutograd")

    def save(ctx, inputs, keyword_only_inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.beta = keyword_only_inputs["beta"]

    def backward(ctx, grad_y):
        return torch.ops.my.swish_backward(grad_y, *ctx.saved_tensors, beta=ctx.beta)

    torch.library.register_autograd("my::swish", backward, setup_context=save, lib=library)
    torch.library.register_autograd(
        "my::shift",
        lambda ctx, grad_y: (grad_y, torch.ops.cudarelu.sum_rows(grad_y)),
        setup_context=lambda ctx, inputs, output: None,
        lib=library,
    )

    own_modules, own_ops, own_make = _C.modules, _C.ops, _C.make_function
    fields = {
        "name": "my",
        "path": cudarelu.ort.library_path(),  # a library that ONNX Runtime can register
        "onnx_domain": "my",
        "onnx_version": 3,
        "definition_opset": 18,
        "built_for": "CPU",
    }
    loaded: list[dict] = []

    def load_module(path):
        loaded[:] = [fields]
        return "my"

    _C.load_module = load_module
    _C.modules = lambda: own_modules() + loaded
    _C.ops = lambda module: OPS if module == "my" else own_ops(module)
    _C.make_function = lambda module, name, documentation: (
        _function(name) if module == "my" else own_make(module, name, documentation)
    )
