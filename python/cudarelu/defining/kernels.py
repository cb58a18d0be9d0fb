"""The sources of ops whose CUDA kernels are written in Triton."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future

from .._table import OpInfo, SizeExpression
from .cubins import Argument, Compiler, Cubin, aligned_sizes, arguments_of
from .evaluation import cpu_source
from .ops import declaration, header
from .triton_trace import (
    Branch,
    Launch,
    Leaf,
    Symbol,
    Tensor,
    Tree,
    identifier,
    integer_symbol,
    leaves,
)

_ELEMENTS = {  # in C++
    "float32": "float",
    "float64": "double",
    "float16": "cudarelu::Half",
    "bfloat16": "cudarelu::BFloat16",
    "int8": "std::int8_t",
    "uint8": "std::uint8_t",
    "int32": "std::int32_t",
    "int64": "std::int64_t",
}


@dataclasses.dataclass(frozen=True)
class TritonOp:
    """An op with kernels in Triton, as sources of a module."""

    op: OpInfo
    trees: Mapping[str, Tree]  # by dtype of the type variable

    @property
    def ops(self) -> list[OpInfo]:
        return [self.op]

    def header(self, namespace: str) -> str:
        functions = (
            "  static cudarelu::Status cpu(const cudarelu::Call& call);",
            "  static cudarelu::Status cuda(const cudarelu::Call& call);",
        )
        struct = declaration(self.op, functions)
        return header(["cudarelu/kernel.h"], namespace, [struct])

    def identity(self) -> str:
        """A text that changes with the kernels, and with the compiler of Triton."""
        import triton

        kernels = [
            launch.cache_keys
            for tree in self.trees.values()
            for leaf in leaves(tree)
            for launch in leaf.launches
        ]
        return repr((triton.__version__, kernels, self.trees))

    def files(self, namespace: str, architectures: Sequence[str]) -> dict[str, str]:
        """The sources by name: the declaration, the CPU kernel, and the launches on CUDA."""
        op = dataclasses.replace(self.op, namespace=namespace)
        name = op.name
        files = {f"{name}.h": self.header(namespace), f"{name}.cpp": cpu_source(op, f"{name}.h")}
        if architectures:
            with Compiler(name, architectures) as compiler:
                files[f"{name}_cuda.cpp"] = _Writer(op, self.trees, compiler).text()
        return files


class _Writer:
    """Writes the function that launches the kernels of an op."""

    def __init__(self, op: OpInfo, trees: Mapping[str, Tree], compiler: Compiler) -> None:
        self._op = op
        self._trees = trees
        self._compiler = compiler
        self._images: dict[tuple[Future[Cubin], ...], str] = {}

    def text(self) -> str:
        op = self._op
        body = [*self._locals(), *self._by_dtype()]
        codes: dict[bytes, str] = {}  # equal code exists once
        images = []
        for requests, name in self._images.items():
            images.append(f"constexpr triton::Image {name}[] = {{")
            for cubin in (each.result() for each in requests):
                code = codes.setdefault(cubin.code, f"code_{len(codes)}")
                images.append(f"    {_image(cubin, code)},")
            images.append("};")
        words = [
            f"alignas(16) constexpr std::uint64_t {name}[] = {{{_words(code)}}};"
            for code, name in codes.items()
        ]
        newline = "\n"
        return f"""// The launches of kernels in Triton, and their machine code.
#include "{op.name}.h"

#ifdef CUDARELU_WITH_CUDA
#include "cudarelu/detail/cuda/triton.h"

namespace {op.namespace} {{
namespace {{
namespace triton = cudarelu::gpu::triton;
{newline.join([*words, *images, "}  // namespace"])}

cudarelu::Status {op.onnx.op_type}::cuda(const cudarelu::Call& call) {{
{newline.join(f"  {line}" for line in body)}
}}

}}  // namespace {op.namespace}
#endif
"""

    def _locals(self) -> Iterator[str]:
        """Tensors, dimensions and attributes, by the names that symbols have."""
        op = self._op
        for i, each in enumerate((*op.inputs, *op.outputs)):
            count = len(op.inputs)
            argument = f"inputs[{i}]" if i < count else f"outputs[{i - count}]"
            view = "[[maybe_unused]] const cudarelu::TensorView&"
            yield f"{view} {identifier(each.name)} = call.{argument};"
        empty = " && ".join(f"{identifier(each.name)}.size() == 0" for each in op.outputs)
        yield f"if ({empty}) return {{}};"
        known = {each.name for each in (*op.inputs, *op.outputs)}
        known |= {attribute.name for attribute in op.attributes}
        for i, attribute in enumerate(op.attributes):
            kind, read = ("double", "real") if attribute.type == "float" else ("auto", "integer")
            name = identifier(attribute.name)
            yield f"[[maybe_unused]] const {kind} {name} = call.{read}({i});"
        computed: list[tuple[SizeExpression, str]] = []
        for each in op.inputs:
            if not each.required:
                continue
            for i, dim in enumerate(each.dims):
                shape = f"{identifier(each.name)}.shape"
                axis = each.axis_of(i)
                size = f"{shape}[{axis}]" if axis >= 0 else f"{shape}[{shape}.size() - {-axis}]"
                if each.axis and i == each.star + 1:
                    axis_name = identifier(each.axis)
                    group = f"{shape}.size() - {len(each.dims) - 2}"  # of `*` and the dimension
                    size = f"{shape}[{each.star} + ({axis_name} < 0 ? {group} : 0) + {axis_name}]"
                if isinstance(dim, SizeExpression):
                    computed.append((dim, size))
                elif isinstance(dim, str) and dim != "*" and dim not in known:
                    known.add(dim)
                    yield f"[[maybe_unused]] const std::int64_t {identifier(dim)} = {size};"
        for dim, size in computed:
            for name in dim.names:
                if name not in known:
                    known.add(name)
                    names = {each: integer_symbol(identifier(each)) for each in dim.names}
                    solution = dim.solve(name, integer_symbol(size), names).text
                    yield f"[[maybe_unused]] const std::int64_t {identifier(name)} = {solution};"

    def _by_dtype(self) -> Iterator[str]:
        variable = next(each.name for each in self._op.inputs if each.dtype == "T")
        for dtype, tree in self._trees.items():
            yield f"if ({identifier(variable)}.dtype == cudarelu::DType::{dtype}) {{"
            yield from (f"  {line}" for line in self._tree(tree, dtype))
            yield "}"
        yield (
            "return {cudarelu::Status::Code::unsupported_dtype, "
            f'"{self._op.name}: the kernels do not have this dtype"}};'
        )

    def _tree(self, tree: Tree, dtype: str) -> Iterator[str]:
        if isinstance(tree, Branch):
            yield f"if ({tree.condition}) {{"
            yield from (f"  {line}" for line in self._tree(tree.true, dtype))
            yield "}"
            yield from self._tree(tree.false, dtype)
        else:
            yield from self._leaf(tree, dtype)

    def _leaf(self, leaf: Leaf, dtype: str) -> Iterator[str]:
        if leaf.error is not None:
            message = json.dumps(f"{self._op.name}: {leaf.error}", ensure_ascii=False)
            yield f"return {{cudarelu::Status::Code::invalid_argument, {message}}};"
            return
        for name, element, count in leaf.workspaces:
            yield f"{_ELEMENTS[element]}* {name} = nullptr;"
            yield from _checked(f"cudarelu::allocate(call, {count}, {name})")
        for launch in leaf.launches:
            yield from self._launch(launch, dtype)
        yield "return {};"

    def _launch(self, launch: Launch, dtype: str) -> Iterator[str]:
        arguments = arguments_of(launch, dtype)
        kernels = ", ".join(
            f"triton::Kernel({self._images.setdefault(tuple(each), f'images_{len(self._images)}')})"
            for each in self._compiler.compiled(launch, dtype)
        )
        yield "{"
        yield f"  static triton::Kernel kernels[] = {{{kernels}}};"
        addresses = [
            _address(each.value)
            for each in arguments.values()
            if each.specialised and isinstance(each.value, Tensor)
        ]
        yield f"  unsigned code = triton::are_aligned(16{''.join(f', {a}' for a in addresses)});"
        for i, group in enumerate(aligned_sizes(arguments)):
            sizes = " && ".join(
                f"{text} % 16 == 0" for text in dict.fromkeys(_size(arguments[n]) for n in group)
            )
            yield f"  if (code > 0 && {sizes}) code += {1 << i};"
        passed = [", " + _passed(name, each) for name, each in arguments.items()]
        grid = ", ".join(launch.grid)
        call = f"kernels[code].launch(call, {{{grid}}}{''.join(passed)})"
        yield from (f"  {line}" for line in _checked(call))
        yield "}"


def _image(cubin: Cubin, code: str) -> str:
    numbers = (cubin.threads, cubin.shared_bytes, cubin.scratch_bytes, cubin.scratch_align)
    return f'{{{cubin.architecture}, "{cubin.name}", {", ".join(map(str, numbers))}, {code}}}'


def _checked(call: str) -> Iterator[str]:
    yield f"if (cudarelu::Status status = {call}; !status.ok()) return status;"


def _address(tensor: Tensor) -> str:
    return tensor.name if tensor.is_workspace else f"{tensor.name}.data"


def _size(argument: Argument) -> str:
    assert isinstance(argument.value, Symbol)
    return argument.value.text


def _passed(name: str, argument: Argument) -> str:
    value = argument.value
    if isinstance(value, Tensor):
        return f"static_cast<void*>({_address(value)})"
    if argument.type == "i32":
        return f'triton::to_int32(call, "{name}", {value.text})'
    kinds = {"i64": "std::int64_t", "fp32": "float", "fp64": "double"}
    return f"static_cast<{kinds[argument.type]}>({value.text})"


def _words(code: bytes) -> str:
    """A cubin as integers of 8 bytes."""
    padded = code + bytes(-len(code) % 8)
    return ",".join(f"{word:#x}" for (word,) in struct.iter_unpack("<Q", padded))
