"""Random elementwise definitions, and an interpreter that knows what rounding does to them.

The interpreter runs a definition node by node, many times at once: arithmetic is rounded to the
type that kernels compute in, and functions whose last bits differ between libraries get a random
error of some units in the last place. What a kernel returns must be among the results. So the
comparison is exact for arithmetic, and no tolerance hides a wrong element beside a large one.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.defs
import onnx.helper

import cudarelu
from cudarelu._onnx.definitions import defaults_of
from cudarelu._onnx.evaluator import evaluator
from cudarelu._table import OpInfo
from cudarelu.defining.operators import OPERATORS
from cudarelu.defining.reading import DECOMPOSED
from cudarelu.defining.symbolic import Value, apply
from cudarelu.testing.cases import laid_out, special_values

DTYPES = ("float32", "float64", "float16", "bfloat16")
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -2.5, 0.1, -0.7, 7.0, 16.0, 17.0, 1e-3, 1e30)
EDGES = (0.5, 1.5, -2.5, 2.0, 3.0, -3.0, 6.0, 20.0, -20.0, 90.0, -90.0, 720.0, -720.0)
EDGES += (0.999, 1e-6, 2.0**24 + 1, 1e4, -1e4, 65000.0, 1e300)
FACTORS = (0.25, 0.5, 1.0, 1.75, -0.5)  # exact in float32, as ONNX's attributes are
DOMAINS = {  # what gives a number of the operator's domain
    "Acos": "Sin",
    "Acosh": "Cosh",
    "Asin": "Tanh",
    "Atanh": "Softsign",
    "Log": "Softplus",
    "Pow": "Softplus",
    "Sqrt": "Abs",
}
DEFAULTS = {"a": 0.5, "b": -1.25}
IN_PYTHON: dict[str, Callable[..., Any]] = {
    "Abs": abs,
    "Add": operator.add,
    "And": operator.and_,
    "Div": operator.truediv,
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Mul": operator.mul,
    "Neg": operator.neg,
    "Not": operator.invert,
    "Or": operator.or_,
    "Pow": operator.pow,
    "Sub": operator.sub,
    "Xor": operator.xor,
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A node with its operands by name, "" for an absent one; or a number or an attribute."""

    name: str
    op_type: str  # or "Number", "Attribute", "IsLabel"
    operands: tuple[str, ...] = ()
    attributes: tuple[tuple[str, float | int | str], ...] = ()  # a string names the op's
    constant: str = ""  # the attribute of a Constant
    number: float | bool | str = 0.0  # a string names the op's attribute

    def lines(self, like: Callable[[str], str]) -> list[str]:
        """ONNX's text, where `like` converts a constant."""
        n = self.name
        if self.constant and isinstance(self.number, bool):
            return [f"{n} = Constant<{self.constant}>()"]
        if self.constant:
            lines = [f"{n}_c = Constant<{self.constant}>()"]
            if self.op_type != "IsLabel":
                return [*lines, f"{n} = {like(f'{n}_c')}"]
            lines += [f"{n}_l = {like(f'{n}_c')}", f"{n}_i = Constant<value_int = 1>()"]
            return [*lines, f"{n}_j = {like(f'{n}_i')}", f"{n} = Equal({n}_l, {n}_j)"]
        given = [
            f"{name}: float = @{value}" if isinstance(value, str) else f"{name} = {value!r}"
            for name, value in self.attributes
        ]
        attributes = f"<{', '.join(given)}>" if given else ""
        line = f"{self.op_type}{attributes}({', '.join(self.operands)})"
        if self.op_type == "Cast" and dict(self.attributes)["to"] != onnx.TensorProto.BOOL:
            return [f"{n}_k = {line}", f"{n} = CastLike({n}_k, x)"]
        return [f"{n} = {line}"]


class RandomDefinition:
    """A declaration of an op, and what it computes, as text and as a Python function."""

    def __init__(self, seed: int, name: str) -> None:
        self.random = random = np.random.default_rng(seed)
        self.name = name
        # Each dtype and each derivative takes seconds to compile.
        self._orders = int(random.choice([0, 1, 2], p=[0.6, 0.35, 0.05]))
        count = random.integers(1, 5) if self._orders == 0 else 1
        self.dtypes = tuple(map(str, random.choice(DTYPES, count, replace=False)))
        if self._orders and random.random() < 0.7:
            self.dtypes = ("float64",)
        self.in_python = bool(random.random() < 0.4)
        # Constants take the dtype of the op without CastLike, too.
        self._bare = random.random() < 0.5
        self.rows = {"x": False, "z": False, "w": True}  # by input: whether it is a row
        if random.random() < 0.3:
            self.rows = {"w": True, "x": False}  # constants are like a row
        self.steps: list[Step] = []
        self._reals, self._bools = list(self.rows), []
        for each in list(DEFAULTS)[: random.integers(3)]:
            constant = f"value_float: float = @{each}"
            self._reals.append(self._add("Attribute", constant=constant, number=each))
        if random.random() < 0.2:
            constant = "value_int: int = @by"
            self._bools.append(self._add("IsLabel", constant=constant, number="by"))
        for _ in range(random.integers(2, 12)):
            self._step()
        self._finish()

    def _among(self, choices: Any) -> Any:
        return list(choices)[self.random.integers(len(choices))]

    def _add(self, op_type: str, *operands: str, **given: Any) -> str:
        self.steps.append(Step(f"t{len(self.steps)}", op_type, operands, **given))
        return self.steps[-1].name

    def _number(self) -> str:
        number = self._among(NUMBERS)
        forms = [f"value = double {{{number!r}}}"]
        if number == float(np.float32(number)):
            forms.append(f"value_float = {number!r}")
        if number.is_integer() and number and number < 100:
            forms.append(f"value_int = {int(number)}")
        return self._add("Number", constant=self._among(forms), number=number)

    def _real(self) -> str:
        if self.random.random() < 0.2:
            return self._number()
        return self._among(self._reals[-3:] if self.random.random() < 0.6 else self._reals)

    def _bool(self) -> str:
        if self.random.random() < 0.03:
            value = bool(self.random.integers(2))
            return self._add("Number", constant=f"value = bool {{{int(value)}}}", number=value)
        if not self._bools or self.random.random() < 0.3:
            self._node(self._among(["Less", "Equal", "GreaterOrEqual", "IsNaN"]), mixed=False)
        return self._among(self._bools)

    def _step(self) -> None:
        names = [*OPERATORS, *([] if self.in_python else ["Cast", "Identity", *DECOMPOSED])]
        joining = ("Add", "Sub", "Mul", "Div", "Where")
        self._node(self._among(joining if self.random.random() < 0.25 else names))

    def _node(self, op_type: str, mixed: bool = True) -> None:
        """A node, of conditions where it may have them and `mixed` says so."""
        random = self.random
        known = OPERATORS.get(op_type)
        kind = known.operands if known else "real"
        is_bool = kind == "bool" or (mixed and kind in ("any", "where") and random.random() < 0.15)
        pick = self._bool if is_bool else self._real
        gives_bool = is_bool if kind == "where" else known is not None and known.result == "bool"
        attributes: dict[str, float | int | str] = {}
        if op_type == "Cast":
            if random.random() < 0.3:
                pick = self._bool
            attributes["to"] = int(self._among([1, 6, 7, 9, 11]))
            gives_bool = attributes["to"] == onnx.TensorProto.BOOL
        elif op_type == "Mod":
            attributes["fmod"] = 1
        elif op_type == "Celu":  # alpha must be positive
            attributes["alpha"] = self._among([each for each in FACTORS if each > 0])
        else:
            for name, default in defaults_of(op_type).items():
                if random.random() < 0.5:
                    continue
                if isinstance(default, int):
                    attributes[name] = int(random.integers(2))
                elif random.random() < 0.4 and any(s.op_type == "Attribute" for s in self.steps):
                    attributes[name] = self.steps[0].number
                else:
                    attributes[name] = self._among(FACTORS)
        if op_type in ("Max", "Min", "Sum", "Mean"):
            operands = [pick() for _ in range(random.integers(1, 4))]
        elif op_type == "Clip":
            operands = [pick() for _ in range(random.integers(1, 4))]
            if len(operands) == 3 and random.random() < 0.3:
                operands[1] = ""
        elif kind == "where":
            operands = [self._bool(), pick(), pick()]
        else:
            operands = [pick() for _ in range(onnx.defs.get_schema(op_type, 18, "").min_input)]
        if op_type in DOMAINS and random.random() < 0.7:
            operands[0] = self._add(DOMAINS[op_type], operands[0])
        made = self._add(op_type, *operands, attributes=tuple(attributes.items()))
        (self._bools if gives_bool else self._reals).append(made)

    def _finish(self) -> None:
        """The value of most nodes is the output, which depends on an input of its shape."""
        last = max(self._reals, key=lambda name: len(self._needed(name)))
        if not {"x", "z"} & self._needed(last):
            last = self._add("Add", last, "x")
        needed = self._needed(last)
        self.steps = [each for each in self.steps if each.name in needed]
        if not self.steps:
            self.steps.append(Step("y", "Neg", (last,)))
        self.steps[-1] = dataclasses.replace(self.steps[-1], name="y")
        self.rows = {name: row for name, row in self.rows.items() if name in needed or name == "x"}

    def _needed(self, name: str) -> set[str]:
        operands = {each.name: each.operands for each in self.steps}
        found: set[str] = set()
        stack = [name]
        while stack:
            if (each := stack.pop()) and each not in found:
                found.add(each)
                stack += operands.get(each, ())
        return found

    @property
    def signature(self) -> str:
        """The declaration."""
        whole = "*, c" if any(self.rows.values()) else "*"
        inputs = [f"{name}: T[{'c' if row else whole}]" for name, row in self.rows.items()]
        text = self.text
        given = [f"{n}: float = {value}" for n, value in DEFAULTS.items() if f"@{n}" in text]
        given += ["by: none | some = none"] if "@by" in text else []
        parameters = [*inputs, *(["*"] if given else []), *given]
        return f"{self.name}({', '.join(parameters)}) -> y: T[{whole}]"

    def _text(self, like: Callable[[str], str]) -> str:
        return "\n".join(line for step in self.steps for line in step.lines(like))

    @property
    def text(self) -> str:
        """The definition as ONNX has it."""
        return self._text(lambda name: f"CastLike({name}, x)")

    def function(self, **values: Any) -> Any:
        """What the definition computes of symbolic values."""
        known: dict[str, Any] = {**values, "": None}
        for step in self.steps:
            if step.op_type == "IsLabel":
                known[step.name] = known["by"] == "some"
            elif step.constant:
                is_name = isinstance(step.number, str)
                known[step.name] = known[step.number] if is_name else step.number
            else:
                operands = [known[each] for each in step.operands]
                run = IN_PYTHON.get(step.op_type)
                if run is None or not any(isinstance(each, Value) for each in operands):
                    given = {n: known[v] if isinstance(v, str) else v for n, v in step.attributes}
                    known[step.name] = apply(step.op_type, *operands, **given)
                else:
                    known[step.name] = run(*operands)
        return known["y"]

    def define(self) -> None:
        """Adds the op to the library of the with statement around."""
        options: dict[str, Any] = {"orders": self._orders, "dtypes": self.dtypes}
        if not self.in_python:
            text = self._text("Identity({})".format) if self._bare else self.text
            cudarelu.define(self.signature, text, **options)
            return
        names = self.signature.split(" -> ")[0]
        parameters = [each for each in (*self.rows, *DEFAULTS, "by") if f"{each}:" in names]
        scope = {"computed": self.function}
        arguments = ", ".join(f"{each}={each}" for each in parameters)
        exec(f"def made({', '.join(parameters)}): return computed({arguments})", scope)
        cudarelu.define(self.signature, **options)(scope["made"])

    def __str__(self) -> str:
        how = "a Python function of" if self.in_python else "bare" if self._bare else "text"
        return f"{self.signature} in {', '.join(self.dtypes)}, {how}\n{self.text}"


def arrays(op: OpInfo, dtype: np.dtype, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Inputs of random sizes and layouts, with special values."""
    leading = tuple(int(n) for n in random.integers(0, 7, random.integers(0, 3)))
    columns = int(random.integers(1, 40))
    layouts = ("contiguous", "unaligned", "transposed", "expanded", "strided")
    made = {}
    info = ml_dtypes.finfo(dtype)
    with np.errstate(over="ignore"):
        some = np.concatenate([special_values(dtype, True), np.array(EDGES).astype(dtype)])
    some = np.append(some, [info.max, info.min]).astype(dtype)
    for each in op.inputs:
        shape = (columns,) if each.dims == ("c",) else (*leading, columns)
        x = random.normal(0, random.choice([1.0, 3.0, 30.0]), shape).astype(dtype)
        places = random.random(shape) < 0.4
        x[places] = random.choice(some, int(places.sum()))
        made[each.name] = laid_out(x, layouts[random.integers(len(layouts))])
    return made


# Operators with an exact result, and those that are rounded to the nearest number.
_EXACT = {
    *("Abs", "And", "Cast", "CastLike", "Ceil", "Clip", "Constant", "Equal", "Floor", "Greater"),
    *("GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Max", "Min", "Mod"),
    *("Neg", "Not", "Or", "Relu", "Round", "Sign", "ThresholdedRelu", "Where", "Xor"),
}
_NEAREST = ["Add", "Div", "LeakyRelu", "Mul", "PRelu", "Reciprocal", "Shrink", "Sqrt", "Sub"]
# Errors in units in the last place; by default 2. Pow is made of up to 7 multiplications.
_UNITS = {"Pow": 8, "Mish": 8, "Sigmoid": 4, "Softplus": 4, "Softsign": 2, "Selu": 4, "Celu": 4}
# Those whose terms cancel or underflow.
_ABSOLUTE: dict[str, Callable[..., np.ndarray]] = {
    "HardSigmoid": lambda x, beta=0.5, **_: np.full_like(x, max(1.0, abs(beta))),
    "HardSwish": lambda x, **_: np.abs(x),
    "Mean": lambda *xs, **_: np.max(np.abs(np.broadcast_arrays(*xs)), axis=0),
    "Sum": lambda *xs, **_: np.max(np.abs(np.broadcast_arrays(*xs)), axis=0),
}
_PRODUCTS = ("Div", "Mul", "Neg")
_ANY_SIGN_OF_ZERO = ["Clip", "HardSigmoid", "HardSwish", "Max", "Min", "Relu"]


def results(
    op: OpInfo,
    inputs: Mapping[str, np.ndarray],
    attributes: Mapping[str, Any],
    computed: np.dtype,
    runs: int,
    random: np.random.Generator,
    units: float = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """What the definition may give for inputs of one shape.

    Args:
        op: with the definition.
        inputs: in float64, by name.
        attributes: by name.
        computed: the dtype that kernels compute in.
        runs: the number of results of each element.
        random: for the errors.
        units: a factor of the errors of functions.

    Returns:
        The results in float64, a row for each run, and where the definition says nothing.
    """
    values: dict[str, Any] = {"": None}
    values |= {name: np.broadcast_to(x, (runs, *x.shape)) for name, x in inputs.items()}
    is_open = np.zeros(next(iter(inputs.values())).shape, bool)
    is_extreme = is_open.copy()
    has_kernel_function = False
    origin = {}
    with np.errstate(all="ignore"):
        for node in evaluator(op, attributes).rt_nodes_:
            operands = [values[name] for name in node.input]
            named = {
                each.name: onnx.helper.get_attribute_value(each)
                for each in node.onnx_node.attribute
            }
            if node.op_type == "Cast" and named["to"] in _WHOLE and operands[0].dtype != bool:
                # Beyond the integers, anything: kernels do not convert.
                (x,) = operands
                is_open |= ~(np.abs(x) < _WHOLE[named["to"]]).all(axis=0)
                y = np.trunc(x) + 0.0  # no integer is -0
            else:
                (y,) = node.run(*operands)
            if node.op_type == "Pow":  # that of 1/2 may be the square root
                x, exponent = operands
                odd = np.signbit(x) & ((x == 0) | np.isinf(x)) & (exponent == 0.5)
                is_open |= odd.any(axis=0)
            if node.op_type == "Constant":
                y = np.broadcast_to(y, (runs, *is_open.shape))
            elif y.dtype != bool:
                # simplify.py: factors are rounded in another order then.
                operators = [origin.get(each, "") for each in node.input]
                is_bell = node.op_type == "Exp" and operators[0] in _PRODUCTS
                has_kernel_function |= is_bell or (node.op_type == "Add" and "Erf" in operators)
                wider = 1 + 2 * np.abs(operands[0]) if is_bell else 1
                y = _rounded(
                    *(node.op_type, y.astype(np.float64), operands, named),
                    *(computed, random, units * wider),
                )
            values[node.output[0]] = y
            origin[node.output[0]] = node.op_type
            size = np.abs(y).astype(np.float64)
            is_tiny = (size > 0) & (size < 2.0**20 * np.finfo(computed).tiny)
            is_extreme |= (is_tiny | ~np.isfinite(size)).any(axis=0)
    if has_kernel_function:  # products of other order underflow and overflow elsewhere
        is_open |= is_extreme
    return values[op.outputs[0].name], is_open


_WHOLE = {onnx.TensorProto.INT32: 2.0**31, onnx.TensorProto.INT64: 2.0**63}


def _rounded(
    op_type: str,
    y: np.ndarray,
    operands: list[np.ndarray],
    attributes: Mapping[str, Any],
    computed: np.dtype,
    random: np.random.Generator,
    units: np.ndarray | float,
) -> np.ndarray:
    """The results of an operator with errors, of which the first run has none."""
    is_nearest = op_type in _NEAREST and (np.all(units == 1) or op_type != "Sqrt")
    if op_type not in _EXACT and not is_nearest:
        info = np.finfo(computed)
        error = random.uniform(-1, 1, y.shape) * _UNITS.get(op_type, 2) * units
        error[0] = 0
        given = {name: value for name, value in attributes.items() if name == "beta"}
        size = _ABSOLUTE[op_type](*operands, **given) if op_type in _ABSOLUTE else np.abs(y)
        step = np.where(np.isfinite(y) & (y != 0), np.maximum(size * info.eps, 0), 0)
        step = np.where(
            (step > 0) & (step < info.smallest_subnormal), info.smallest_subnormal, step
        )
        if op_type in _ABSOLUTE:
            step = np.where(np.isfinite(y), size * info.eps, 0)
        y = y + error * step
        if op_type in ("Exp", "Mish", "Sigmoid", "Softplus"):  # small exponentials are 0
            is_small = np.abs(y) < (1024 if op_type == "Mish" else 4) * info.tiny
            y = np.where(is_small & (random.random(y.shape) < 0.5), 0 * y, y)
        if op_type == "HardSigmoid":
            y = np.clip(y, 0, 1)
    if op_type == "Div" and computed == np.float32:  # by a constant, as divided_by() in onnx.h
        unit = np.where(np.abs(y) < 2.0**-100, np.spacing(np.abs(y).astype(np.float32)), 0)
        y = y + random.integers(-1, 2, y.shape) * unit
    if op_type in _ANY_SIGN_OF_ZERO:
        y = np.where((y == 0) & (random.random(y.shape) < 0.5), -y, y)
    return y.astype(computed).astype(np.float64)


def wrong(
    op: OpInfo,
    inputs: Mapping[str, np.ndarray],
    attributes: Mapping[str, Any],
    actual: np.ndarray,
    random: np.random.Generator,
    units: float = 1,
) -> list[str]:
    """The elements of a result that the definition does not give; [] if there are none."""
    dtype = actual.dtype
    computed = np.dtype("float64" if dtype == "float64" else "float32")
    wide = {name: x.astype(np.float64) for name, x in inputs.items()}
    wide = dict(zip(wide, np.broadcast_arrays(*wide.values()), strict=True))
    wide = {name: x.reshape(-1) for name, x in wide.items()}
    flat = actual.reshape(-1)
    assert flat.size == next(iter(wide.values())).size
    suspects = np.arange(flat.size)
    for runs in (16, 1000):  # rare results take more runs
        some = {name: x[suspects] for name, x in wide.items()}
        found, is_open = results(op, some, attributes, computed, runs, random, units)
        suspects = suspects[~(is_open | _fits(flat[suspects], found, dtype))]
        if not suspects.size:
            return []
    printed = []
    for i in suspects[:3]:
        at = {name: float(x[i]) for name, x in wide.items()}
        exact, _ = results(
            op,
            {n: x[i : i + 1] for n, x in wide.items()},
            attributes,
            computed,
            1000,
            random,
            units,
        )
        low, high = exact.min(), exact.max()
        printed.append(f"{at}: {flat[i]}, not {exact[0, 0]} ({low} to {high})")
    return printed


def _fits(actual: np.ndarray, found: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Whether each element is among its results, or as far from them as they are apart."""
    with np.errstate(all="ignore"):
        is_nan = np.isnan(found)
        low = np.where(is_nan, np.inf, found).min(axis=0)
        high = np.where(is_nan, -np.inf, found).max(axis=0)
        apart = np.where(np.isfinite(high - low), high - low, 0)
        y = actual.astype(np.float64)
        rounded = [each.astype(dtype).astype(np.float64) for each in (low - apart, high + apart)]
        fits = np.where(np.isnan(y), is_nan.any(axis=0), (rounded[0] <= y) & (y <= rounded[1]))
        narrow = found.astype(dtype).astype(np.float64)
        is_zero = (narrow == 0).all(axis=0) & (y == 0)
        same_sign = (np.signbit(narrow) == np.signbit(y)).any(axis=0)
        return fits & (~is_zero | same_sign)
