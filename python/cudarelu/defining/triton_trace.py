"""The launches of an op's kernels as a function of shapes and attributes.

The author writes a Python function of a call. It runs with symbols for what is known when the op is
called: sizes and numbers. Where it branches on one, it runs once for each outcome, so that what it
returns is a tree: conditions, and at the leaves launches, whose compile-time constants are known.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from .._table import Dim, OpInfo, Parameter

_MAX_PATHS = 256


def _operators(method: Callable[..., Any], *forms: str) -> list[Callable[[Any, object], Any]]:
    """The operators of Symbol that a method makes of its own text and that of the other operand."""

    def operator(form: str) -> Callable[[Any, object], Any]:
        return lambda self, other: method(self, other, form)

    return [*map(operator, forms)]


class Symbol:
    """A number that is known when the op is called: a size, an attribute, or computed from them.

    It has Python's arithmetic and comparisons, `min` and `max`. A function may branch on it, but
    not use it where Python needs a number, as in `range`.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, path: _Path, text: str, kind: str) -> None:
        self._path = path
        self.text = text  # in C++
        self.kind = kind  # "int" or "float"

    def _with(self, other: object, form: str, kind: str | None = None) -> Symbol:
        if not _is_number(other):
            raise TypeError(f"{self} has no arithmetic with {other!r}")
        kinds = {self.kind, _kind(other)}
        kind = kind or ("float" if "float" in kinds else "int")
        return Symbol(self._path, form.format(self.text, _text(other)), kind)

    def _whole(self, other: object, form: str) -> Symbol:
        if _is_number(other) and {self.kind, _kind(other)} != {"int"}:
            raise TypeError(f"{self} and {other}: // and % need integers")
        return self._with(other, form)

    def _divided(self, other: object, form: str) -> Symbol:
        result = self._whole(other, form)
        if not isinstance(other, Symbol) and other == 0:
            raise ZeroDivisionError(f"{self} is divided by 0")
        return result

    def _compared(self, other: object, form: str) -> _Condition:
        return _Condition(self._path, self._with(other, form).text)

    # The C++ of each operator, and of its form for a number as the first operand.
    __add__, __radd__ = _operators(_with, "({} + {})", "({1} + {0})")
    __sub__, __rsub__ = _operators(_with, "({} - {})", "({1} - {0})")
    __mul__, __rmul__ = _operators(_with, "({} * {})", "({1} * {0})")
    __truediv__, __rtruediv__ = _operators(
        functools.partial(_with, kind="float"),
        "(static_cast<double>({}) / {})",
        "(static_cast<double>({1}) / {0})",
    )
    (__floordiv__,) = _operators(_divided, "triton::floor_div(call, {}, {})")
    (__rfloordiv__,) = _operators(_whole, "triton::floor_div(call, {1}, {0})")
    (__mod__,) = _operators(_divided, "triton::floor_mod(call, {}, {})")
    (__rmod__,) = _operators(_whole, "triton::floor_mod(call, {1}, {0})")
    __lt__, __le__, __gt__, __ge__, __eq__, __ne__ = _operators(
        _compared, *(f"{{}} {sign} {{}}" for sign in ("<", "<=", ">", ">=", "==", "!="))
    )

    def __neg__(self) -> Symbol:
        return Symbol(self._path, f"(-{self.text})", self.kind)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def _no_number(self, *_: object) -> NoReturn:
        raise TypeError(
            f"{self} is known only when the op is called: choose a number by comparisons, such as "
            "call.next_power_of_2(call.c, most=4096)"
        )

    __index__ = __int__ = __float__ = __pow__ = __rpow__ = __or__ = __ror__ = _no_number
    __and__ = __rand__ = __xor__ = __rxor__ = _no_number
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _no_number

    def __repr__(self) -> str:
        return re.sub(r"_\b", "", self.text)  # of the names in C++


def _is_number(value: object) -> bool:
    return isinstance(value, Symbol | numbers.Real) and not isinstance(value, bool)


def _kind(value: object) -> str:
    if isinstance(value, Symbol):
        return value.kind
    return "int" if isinstance(value, numbers.Integral) else "float"


def _text(value: Any) -> str:
    """A number in C++."""
    if isinstance(value, Symbol):
        return value.text
    if isinstance(value, numbers.Integral):
        return str(int(value))
    number = float(value)
    if math.isfinite(number):
        return repr(number)
    name = "quiet_NaN" if math.isnan(number) else "infinity"
    return f"{'-' if number < 0 else ''}std::numeric_limits<double>::{name}()"


class _Condition:
    """A comparison, whose outcome `bool()` takes from the path."""

    def __init__(self, path: _Path, text: str) -> None:
        self._path = path
        self._text = text

    def __bool__(self) -> bool:
        return self._path.outcome(self._text)


def integer_symbol(text: str) -> Symbol:
    """An integer with this text in C++, outside of any run of a function."""
    return Symbol(_Path({}), text, "int")


class _Path:
    """The outcomes of the conditions that one run of the function meets, in their order."""

    def __init__(self, outcomes: Mapping[str, bool]) -> None:
        self.outcomes = dict(outcomes)
        self.met: dict[str, None] = {}
        self.has_ended = False

    def outcome(self, condition: str) -> bool:
        if self.has_ended:
            raise TypeError(f"{condition}: a symbol of another run of the function")
        self.met.setdefault(condition)
        if len(self.met) > _MAX_PATHS:
            raise TypeError(
                f"the function branches over {_MAX_PATHS} times in one run: a loop cannot depend "
                "on what is known only when the op is called"
            )
        return self.outcomes.setdefault(condition, True)


class Tensor:
    """An input, an output or the workspace of a call; as an argument of a kernel, its address."""

    def __init__(
        self, path: _Path, name: str, dtype: str, dims: Sequence[Dim] | None, size: str
    ) -> None:
        self._path = path
        self._dims = dims
        self._size = size
        self.name = name
        self.dtype = dtype

    def numel(self) -> Symbol:
        """The number of elements."""
        return Symbol(self._path, self._size, "int")

    @property
    def shape(self) -> _Shape:
        """The sizes; where the signature has *, of those after it from the end."""
        return _Shape(self._path, self)

    @property
    def is_workspace(self) -> bool:
        """Whether the tensor is no input or output."""
        return self._dims is None

    def sizes(self) -> Sequence[Dim]:
        """The dimensions of the signature."""
        if self._dims is None:
            raise TypeError(f"{self} has no shape: it is workspace")
        return self._dims

    def __repr__(self) -> str:
        return self.name.removesuffix("_")


class _Shape:
    def __init__(self, path: _Path, tensor: Tensor) -> None:
        self._path = path
        self._tensor = tensor

    def __getitem__(self, index: int) -> Symbol:
        dims = self._tensor.sizes()
        named = len(dims)
        star = dims.index("*") if "*" in dims else named
        lowest = star + 1 - named if star < named else -named
        if not isinstance(index, int) or not lowest <= index < star:
            where = f", counted from {'both ends' if star else 'the end'}" if star < named else ""
            raise IndexError(
                f"{self._tensor}.shape[{index!r}]: the signature has the dimensions "
                f"[{', '.join(map(str, dims))}]{where}"
            )
        if star == named:
            index %= named
        position = str(index) if index >= 0 else f"{self._tensor.name}.shape.size() - {-index}"
        return Symbol(self._path, f"{self._tensor.name}.shape[{position}]", "int")

    def __iter__(self) -> Iterator[Symbol]:
        dims = self._tensor.sizes()
        if "*" in dims:
            raise TypeError(f"{self._tensor} has any number of dimensions")
        return (self[i] for i in range(len(dims)))


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch of a kernel."""

    kernel: Any  # triton.JITFunction
    grid: tuple[str, ...]  # in C++
    arguments: Mapping[str, Any]  # by parameter; a Tensor, a Symbol, or a constant
    options: Mapping[str, Any]  # of Triton's compiler: num_warps, num_stages

    @property
    def cache_keys(self) -> list[str]:
        """Texts that change with the code of the kernel and of the functions that it takes."""
        values = (getattr(each, "value", each) for each in self.arguments.values())  # tl.constexpr
        return [each.cache_key for each in (self.kernel, *values) if hasattr(each, "cache_key")]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """What a call does: launches, or an error."""

    launches: tuple[Launch, ...] = ()
    workspaces: tuple[tuple[str, str, str], ...] = ()  # name, dtype, number of elements in C++
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class Branch:
    """A condition in C++, and what follows from its outcomes."""

    condition: str
    true: Tree
    false: Tree


Tree = Branch | Leaf


class Call:
    """A call of the op, for the function that returns its launches.

    Attributes:
        <input>, <output>: a `Tensor`; None for an optional input that is absent.
        <attribute>: a number as a `Symbol`, or a label as a str.
        <dimension>: a size as a `Symbol`, of a dimension that the signature names.
    """

    def __init__(self, path: _Path, op: OpInfo, dtype: str) -> None:
        self._path = path
        self._op = op
        self._dtype = dtype
        self._workspaces: list[tuple[str, str, str]] = []

    def __getattr__(self, name: str) -> Any:
        op = self._op
        for each in (*op.inputs, *op.outputs):
            if each.name == name:
                return self._tensor(each)
        for attribute in op.attributes:
            if attribute.name == name:
                if attribute.labels:
                    return self._label(name, attribute.labels)
                return Symbol(self._path, identifier(name), attribute.onnx_type)
        if any(name in each.names for each in op.inputs if each.required):
            return Symbol(self._path, identifier(name), "int")
        raise AttributeError(f"{op.name} has no input, output, attribute or dimension {name}")

    def _tensor(self, parameter: Parameter) -> Tensor | None:
        name = identifier(parameter.name)
        if not parameter.required and not self._path.outcome(f"{name}.present"):
            return None
        dtype = self._dtype if parameter.dtype == "T" else parameter.dtype
        dims = ("*",) if parameter.axis else parameter.dims  # one dimension may be any of them
        return Tensor(self._path, name, dtype, dims, f"{name}.size()")

    def _label(self, name: str, labels: Sequence[str]) -> str:
        for index, label in enumerate(labels[:-1]):
            if self._path.outcome(f"{identifier(name)} == {index}"):
                return label
        return labels[-1]

    def next_power_of_2(self, value: Symbol | int, *, most: int, least: int = 1) -> int:
        """The lowest power of two, from `least` on, that is `value` or more: a constant.

        The kernel is compiled for each power of two up to `most`, which is one. A call whose value
        is above is an error.
        """
        if not 1 <= least <= most:
            raise TypeError(f"next_power_of_2: least = {least} must be from 1 to most = {most}")
        if most & (most - 1):
            raise TypeError(f"next_power_of_2: most = {most} must be a power of two")
        power = 1 << (least - 1).bit_length()
        while power < most:
            if value <= power:
                return power
            power *= 2
        if value > power:
            raise ValueError(f"{value} is over {power}, the most that the kernel supports")
        return power

    def workspace(self, elements: Symbol | int, dtype: str = "float32") -> Tensor:
        """Memory of the device for the launches of this call, without initial values."""
        if dtype not in POINTERS:
            raise TypeError(f"no dtype {dtype!r}: there are {', '.join(POINTERS)}")
        if not _is_size(elements):
            raise TypeError(f"workspace: the number of elements must be an integer: {elements!r}")
        name = f"workspace_{len(self._workspaces)}"
        self._workspaces.append((name, dtype, _text(elements)))
        return Tensor(self._path, name, dtype, None, f"({_text(elements)})")


POINTERS = {  # what Triton calls the dtypes
    "float32": "fp32",
    "float64": "fp64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "int64": "i64",
}


def identifier(name: str) -> str:
    """The name in the C++ function, whose own names do not end with an underscore."""
    return f"{name}_"


def tree_of(op: OpInfo, dtype: str, function: Callable[[Any], Any]) -> Tree:
    """Runs the function for all outcomes of its conditions.

    Raises:
        TypeError: if the function returns anything but launches, uses a symbol as a number, or
            depends on more than the call.
        ValueError: if it has too many outcomes, or an error for each.
    """
    count = 0

    def run(outcomes: dict[str, bool], known: int) -> Tree:
        nonlocal count
        count += 1
        if count > _MAX_PATHS:
            raise ValueError(f"{op.name}: the function has over {_MAX_PATHS} different outcomes")
        path = _Path(outcomes)
        call = Call(path, op, dtype)
        try:
            leaf = Leaf(_launches(op, path, function(call)), tuple(call._workspaces))
        except ValueError as error:
            leaf = Leaf(error=str(error) or "the kernels do not support this call")
        met = list(path.met)
        path.has_ended = True
        if met[:known] != list(outcomes):
            raise TypeError(
                f"{op.name}: the function took other branches when it ran again: it must depend on "
                "the call alone"
            )
        tree: Tree = leaf
        # This run took the true side of each new condition. The last one is innermost.
        for i in range(len(met) - 1, known - 1, -1):
            before = {name: path.outcomes[name] for name in met[:i]}
            other = run(before | {met[i]: False}, i + 1)
            tree = Branch(met[i], tree, other)
        return tree

    tree = run({}, 0)
    if all(leaf.error is not None for leaf in leaves(tree)):
        raise ValueError(f"{op.name}: {next(leaves(tree)).error}")
    return tree


def leaves(tree: Tree) -> Iterator[Leaf]:
    """The leaves of a tree, from the first outcome to the last."""
    if isinstance(tree, Branch):
        yield from leaves(tree.true)
        yield from leaves(tree.false)
    else:
        yield tree


def _launches(op: OpInfo, path: _Path, returned: Any) -> tuple[Launch, ...]:
    listed = returned if isinstance(returned, list) else [returned]
    if not listed:
        raise TypeError(f"{op.name}: the function returned no launches")
    return tuple(_launch(op, path, each) for each in listed)


def _launch(op: OpInfo, path: _Path, returned: Any) -> Launch:
    from triton.runtime import JITFunction

    if not isinstance(returned, tuple) or len(returned) != 3:
        raise TypeError(
            f"{op.name}: the function must return (kernel, grid, arguments), or a list of those, "
            f"not {returned!r}"
        )
    kernel, grid, arguments = returned
    if not isinstance(kernel, JITFunction):
        raise TypeError(
            f"{op.name}: {kernel!r} is not a @triton.jit function; autotune and heuristics are not "
            "supported: choose the configuration in the function, by shape"
        )
    grid = grid if isinstance(grid, tuple) else (grid,)
    if not 1 <= len(grid) <= 3 or not all(_is_size(each) for each in grid):
        raise TypeError(f"{op.name}: the grid must be one to three integers, not {grid!r}")
    if not isinstance(arguments, Mapping):
        raise TypeError(f"{op.name}: the arguments must be a dict by parameter, not {arguments!r}")
    values = {name: value for name, value in arguments.items() if name in kernel.arg_names}
    options = {name: value for name, value in arguments.items() if name not in kernel.arg_names}
    for parameter in kernel.params:
        if parameter.name not in values:
            if not parameter.has_default:
                raise TypeError(
                    f"{op.name}: no argument sets the parameter {parameter.name} of the kernel "
                    f"{kernel.__name__}"
                )
            values[parameter.name] = parameter.default
        what = f"{op.name}: the parameter {parameter.name} of the kernel {kernel.__name__}"
        values[parameter.name] = _argument(path, parameter, values[parameter.name], what)
    for name, value in options.items():
        if name not in ("num_warps", "num_stages", "maxnreg"):
            raise TypeError(
                f"{op.name}: the kernel {kernel.__name__} has no parameter {name}, and Triton's "
                "compiler takes num_warps, num_stages and maxnreg"
            )
        if not isinstance(value, int) or value < 1:
            raise TypeError(f"{op.name}: {name} must be a positive integer, not {value!r}")
        if name == "num_warps" and value not in (1, 2, 4, 8, 16, 32):
            raise TypeError(f"{op.name}: num_warps must be 1, 2, 4, 8, 16 or 32, not {value}")
    ordered = {name: values[name] for name in kernel.arg_names}
    return Launch(kernel, tuple(map(_text, grid)), ordered, options)


def _argument(path: _Path, parameter: Any, value: Any, what: str) -> Any:
    """An argument of a kernel: a Tensor, a Symbol, or a constant for the compiler."""
    import triton.language as tl
    from triton.runtime import JITFunction

    if isinstance(value, Tensor | Symbol):
        if parameter.is_constexpr:
            raise TypeError(
                f"{what} is a tl.constexpr, but {value} is known only when the op is called"
            )
        if value._path is not path:
            raise TypeError(f"{what}: {value} is of another run of the function")
    elif _is_number(value) and not parameter.is_constexpr:
        value = Symbol(path, _text(value), _kind(value))  # as Triton passes it, not a constant
    elif not isinstance(
        value, bool | int | float | str | tuple | tl.dtype | tl.constexpr | JITFunction | None
    ):
        raise TypeError(f"{what} cannot be {value!r}")
    if isinstance(value, Symbol):
        known = ("", "i32", "i64") if value.kind == "int" else ("", "fp32", "fp64")
        if parameter.annotation_type not in known:
            raise TypeError(f"{what} is annotated as {parameter.annotation_type}: {value} is not")
    return value


def _is_size(value: object) -> bool:
    if isinstance(value, Symbol):
        return value.kind == "int"
    return _is_number(value) and _kind(value) == "int" and 0 <= int(value) < 1 << 63  # type: ignore[call-overload]
