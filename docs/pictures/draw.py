"""Draws the pictures of the documents as SVG, each in light and dark.

    python docs/pictures/draw.py

tests/docs/test_pictures.py checks that the files are what this writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parents[1] / "benchmarks/results"


class Colors(NamedTuple):
    """The colours of a scheme: of text, lines, the ground, and of what boxes stand for."""

    text: str
    quiet: str
    line: str
    ground: str
    declared: str
    module: str
    host: str


SCHEMES = {
    "light": Colors("#1f2328", "#59636e", "#8c959f", "#ffffff", "#fff1d6", "#dbeefe", "#e2f5e5"),
    "dark": Colors("#e6edf3", "#b1bac4", "#6e7681", "#0d1117", "#4b3a12", "#123a5c", "#173d23"),
}


class Drawing:
    """The elements of a picture; lengths are in pixels."""

    def __init__(self, width: int, height: int, colors: Colors) -> None:
        self.size = width, height
        self.colors = colors
        self.elements: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        text: str,
        kind: str = "",
        *,
        anchor: str = "start",
        size: int = 14,
    ) -> None:
        """`kind` has the words bold, code and quiet."""
        style = ' font-weight="600"' if "bold" in kind else ""
        if "code" in kind:
            style += ' font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"'
        color = self.colors.quiet if "quiet" in kind else self.colors.text
        self.elements.append(
            f'<text x="{x:.4g}" y="{y:.4g}" font-size="{size}" text-anchor="{anchor}"'
            f' fill="{color}"{style} xml:space="preserve">{escape(text)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        self.elements.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"'
            f' fill="{fill}" stroke="{self.colors.line}"/>'
        )

    def card(
        self, x: float, y: float, width: float, height: float, fill: str, title: str, *lines: str
    ) -> None:
        """A box with a title and lines; a line that begins with ` is code."""
        self.box(x, y, width, height, fill)
        self.text(x + 12, y + 22, title, "bold")
        for number, line in enumerate(lines):
            code = line.startswith("`")
            kind = "code quiet" if code else "quiet"
            self.text(x + 12, y + 43 + 19 * number, line.removeprefix("`"), kind, size=12)

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        path = " L".join(f"{x:g},{y:g}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.elements.append(
            f'<path d="M{path}" fill="none" stroke="{self.colors.line}" stroke-width="1.5"'
            f'{dashes} marker-end="url(#end)"/>'
        )

    def dot(self, x: float, y: float, fill: str) -> None:
        self.elements.append(
            f'<circle cx="{x:.4g}" cy="{y:.4g}" r="6" fill="{fill}" stroke="{self.colors.text}"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.elements.append(
            f'<path d="M{x1:.4g},{y1:.4g} L{x2:.4g},{y2:.4g}" stroke="{self.colors.line}"'
            ' stroke-width="1.5"/>'
        )

    def curve(self, points: Iterable[tuple[float, float]], *, dashed: bool) -> None:
        path = " L".join(f"{x:.4g},{y:.4g}" for x, y in points)
        color = self.colors.line if dashed else self.colors.text
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.elements.append(
            f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>'
        )

    def svg(self, title: str) -> str:
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}" role="img" font-family="system-ui, -apple-system,'
            " 'Segoe UI', Helvetica, Arial, sans-serif\">\n"
            f"<title>{escape(title)}</title>\n"
            '<marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            f' markerHeight="7" orient="auto" fill="{self.colors.line}">'
            '<path d="M0,0 L8,4 L0,8 z"/></marker>\n'
            f'<rect width="{width}" height="{height}" fill="{self.colors.ground}"/>\n'
        )
        return head + "\n".join(self.elements) + "\n</svg>\n"


class Plot:
    """Two logarithmic axes in a picture, from the lower left corner `left`, `bottom` on."""

    def __init__(
        self,
        drawing: Drawing,
        place: tuple[float, float, float, float],
        columns: tuple[float, float],
        rows: tuple[float, float],
    ) -> None:
        self.drawing = drawing
        self.left, self.bottom, self.width, self.height = place
        self.columns, self.rows = columns, rows
        drawing.line(self.left, self.bottom, self.left + self.width, self.bottom)
        drawing.line(self.left, self.bottom, self.left, self.bottom - self.height)

    def x(self, value: float) -> float:
        low, high = self.columns
        return self.left + self.width * math.log(value / low) / math.log(high / low)

    def y(self, value: float) -> float:
        low, high = self.rows
        return self.bottom - self.height * math.log(value / low) / math.log(high / low)

    def ticks(self, columns: Mapping[float, str], rows: Mapping[float, str]) -> None:
        for value, label in columns.items():
            x = self.x(value)
            self.drawing.line(x, self.bottom, x, self.bottom + 6)
            self.drawing.text(x, self.bottom + 22, label, "quiet", anchor="middle", size=12)
        for value, label in rows.items():
            y = self.y(value)
            self.drawing.line(self.left - 6, y, self.left, y)
            self.drawing.text(self.left - 12, y + 4, label, "quiet", anchor="end", size=12)

    def curve(self, points: Mapping[float, float], *, dashed: bool = False) -> None:
        places = [(self.x(x), self.y(y)) for x, y in sorted(points.items())]
        self.drawing.curve(places, dashed=dashed)


def overview(colors: Colors) -> str:
    drawing = Drawing(880, 400, colors)
    for x, title in ((20, "you write"), (340, "the build makes"), (660, "it serves in")):
        drawing.text(x, 26, title, "quiet")
    drawing.card(
        *(20, 40, 250, 250, colors.declared, "a declaration of each op"),
        *("`squared_relu(x: T[*])", "`    -> y: T[*]", "dtypes"),
        *("gradient, by other ops", "definition, in ONNX operators", ""),
        *("and its kernel:", "a functor for both devices, or", "functions for the CPU and CUDA"),
    )
    drawing.card(
        *(340, 40, 250, 105, colors.module, "libmy_ops.so"),
        *("the table and the kernels,", "behind a boundary in C;", "no framework in it"),
    )
    drawing.card(
        *(340, 185, 250, 105, colors.module, "libcudarelu_ops.so"),
        *(
            "the same for this project's ops:",
            "relu, softmax, attention,",
            "linear_gelu, knn_query, ...",
        ),
    )
    hosts = (
        ("PyTorch", "autograd, torch.compile, vmap"),
        ("ONNX Runtime", "any program, any language"),
        ("ort_infer", "no Python"),
        ("JAX, TensorFlow", "transforms, gradients"),
        ("NumPy, CuPy, tvm-ffi", "arrays"),
    )
    for number, (name, what) in enumerate(hosts):
        y = 40 + 51 * number
        drawing.box(660, y, 200, 46, colors.host)
        drawing.text(672, y + 19, name, "bold")
        drawing.text(672, y + 36, what, "quiet", size=11)
        drawing.arrow((625, y + 23), (656, y + 23))
    drawing.line(625, 63, 625, 267)
    for y in (92, 237):
        drawing.arrow((270, y), (336, y))
        drawing.line(590, y, 625, y)
    drawing.box(20, 320, 840, 60, colors.ground)
    drawing.text(36, 345, "The same table also gives", "bold")
    made = "tests against the definition in float64 · benchmarks · the reference · type stubs · "
    drawing.text(
        36, 366, made + "functions in ONNX files · patterns of accelerate", "quiet", size=12
    )
    drawing.arrow((465, 290), (465, 316), dashed=True)
    return drawing.svg("An op is declared once; a module carries it; every host reads the module")


def call(colors: Colors) -> str:
    drawing = Drawing(880, 520, colors)
    left, right, width, height = 20, 460, 400, 58

    def steps(x: float, title: str, each: Iterable[tuple[str, str]]) -> None:
        drawing.text(x, 24, title, "code bold")
        for number, (name, file) in enumerate(each):
            y = 38 + 76 * number
            drawing.card(x, y, width, height, colors.host, name, "`" + file)
            drawing.arrow((x + width / 2, y + height), (x + width / 2, y + 73))

    steps(
        left,
        "cudarelu.relu(x) in PyTorch",
        (
            ("the arguments are read", "python_arguments.cpp"),
            ("plain tensors: at once; others: the dispatcher", "backend.cpp, register_ops.cpp"),
            ("shapes are inferred, outputs allocated", "core/infer.cpp, backend.cpp"),
        ),
    )
    steps(
        right,
        "a node cudarelu::Relu in ONNX Runtime",
        (
            ("the session makes a kernel of the node", "custom_op.cpp"),
            ("a run gives inputs, stream and threads", "kernel.cpp, execution.cpp"),
            ("shapes are inferred, outputs allocated", "core/infer.cpp, kernel.cpp"),
        ),
    )
    drawing.card(
        *(
            left,
            266,
            840,
            height,
            colors.declared,
            "run(): values are checked, absent inputs filled in",
        ),
        "`core/run.cpp",
    )
    drawing.arrow((440, 324), (440, 356))
    drawing.text(
        452, 345, "the boundary in C: no type of C++ and no exception crosses it", "quiet", size=12
    )
    drawing.card(
        *(
            left,
            360,
            840,
            height,
            colors.module,
            "the kernel of the module, on the host's stream and memory",
        ),
        "`module_call.cpp, cuda/elementwise.cuh",
    )
    drawing.arrow((440, 418), (440, 450))
    drawing.text(452, 439, "a status", "quiet", size=12)
    drawing.card(
        *(left, 454, 840, height, colors.host, "a tensor, or an error in the words of the host"),
        "`torch_binding/errors.h, ort_plugin/runtime.cpp",
    )
    return drawing.svg("The life of a call, from PyTorch and from ONNX Runtime to the kernel")


def records(name: str = "2026-11-28-h200") -> list[dict[str, Any]]:
    """The results of benchmarks, by default those on an H200."""
    _, *lines = (RESULTS / f"{name}.jsonl").read_text().splitlines()
    return [each for each in map(json.loads, lines) if "failed" not in each]


def relu_times() -> tuple[float, float]:
    """Microseconds of relu of 1,024 float32 on an H200: of a call in a loop, and of a kernel among
    others in a CUDA graph."""
    call = json.loads((RESULTS / "2026-11-28-h200-call_cost.json").read_text())
    wanted = {
        "suite": "relu-sizes",
        "dtype": "float32",
        "shape": "1024",
        "regime": "graph, hot",
        "contender": "cudarelu",
    }
    (kernel,) = (each for each in records() if wanted.items() <= each.items())
    return call["cuda"]["plain"]["cudarelu.relu ns"] / 1000, kernel["median_us"]


def cuda_graph(colors: Colors) -> str:
    call_us, kernel_us = relu_times()
    count, left = 6, 130
    total_us = count * call_us + kernel_us
    scale = 700 / total_us
    drawing = Drawing(880, 365, colors)
    drawing.text(20, 26, f"{count} calls of relu, 1,024 float32, on an H200", "bold")

    def row(y: float, name: str) -> None:
        drawing.text(20, y + 20, name)
        drawing.line(left, y + 36, 860, y + 36)

    def blocks(y: float, step: float, width: float, fill: str) -> None:
        for number in range(count):
            drawing.box(left + scale * step * number, y, scale * width - 1, 30, fill)

    drawing.text(20, 62, f"called one by one: {count * call_us:.1f} µs", "quiet")
    row(72, "Python")
    blocks(72, call_us, call_us, colors.host)
    row(118, "GPU")
    for number in range(count):  # a kernel begins when its call has launched it
        end = left + scale * call_us * (number + 1)
        drawing.box(end - 1, 118, scale * kernel_us, 30, colors.module)
    drawing.text(
        20, 194, f"replayed as a CUDA graph: {count * kernel_us:.1f} µs on the GPU", "quiet"
    )
    row(204, "Python")
    drawing.box(left, 204, scale * call_us, 30, colors.host)
    drawing.text(left + 12, 223, "graph.replay()", "code", size=11)
    drawing.text(left + scale * call_us + 12, 223, "free for other work", "quiet", size=12)
    row(250, "GPU")
    start = left + scale * call_us
    for number in range(count):
        drawing.box(
            start + scale * kernel_us * number, 250, scale * kernel_us - 1, 30, colors.module
        )
    for microseconds in range(0, int(total_us) + 1, 5):
        x = left + scale * microseconds
        drawing.line(x, 300, x, 306)
        drawing.text(x, 322, f"{microseconds} µs", "quiet", anchor="middle", size=12)
    drawing.line(left, 300, 860, 300)
    note = "Measured: the lengths of calls and kernels. Not: when kernels start, and replay()."
    drawing.text(20, 352, note, "quiet", size=12)
    return drawing.svg("Calls of relu one by one, and in a CUDA graph, on a line of time")


def operations(record: dict[str, Any]) -> int:
    """The additions and multiplications of a call; those of activations do not count."""
    sizes = [[int(size) for size in shape.split("x")] for shape in record["shape"].split()]
    if record["op"] == "relu":
        return record["elements"]
    rows, columns = sizes[0]
    return 2 * rows * columns * sizes[min(1, len(sizes) - 1)][0]  # of x and weight


def roofline(colors: Colors) -> str:
    chosen = [
        each
        for each in records()
        if each["dtype"] == "bfloat16"
        and each["suite"] in ("bandwidth", "linear", "linear-small")
        and each["op"] in ("relu", "linear_relu")
    ]
    ours = [each for each in chosen if each["contender"] == "cudarelu"]
    copy = max((each for each in chosen if each["contender"] == "copy"), key=lambda r: r["bytes"])
    bare = [each for each in chosen if each["contender"] == "cublaslt"]
    bandwidth = copy["gb_per_s"] / 1000
    peak = max(operations(each) / each["median_us"] / 1e6 for each in bare)

    left, bottom, width = 90, 400, 760
    drawing = Drawing(880, 460, colors)
    plot = Plot(drawing, (left, bottom, width, 340), (0.1, 1e4), (0.1, 10**3.2))
    x, y = plot.x, plot.y
    drawing.text(20, 28, "bfloat16 on an H200: operations a second, and operations a byte", "bold")
    powers = {10.0**exponent: f"{10.0**exponent:,g}" for exponent in range(-1, 5)}
    plot.ticks(powers, {each: label for each, label in powers.items() if each < 1e4})
    drawing.text(left + width, bottom + 44, "operations a byte", "quiet", anchor="end", size=12)
    drawing.text(20, 54, "TFLOP/s", "quiet", size=12)

    ridge = peak / bandwidth
    drawing.line(x(0.1), y(0.1 * bandwidth), x(ridge), y(peak))
    drawing.line(x(ridge), y(peak), left + width, y(peak))
    drawing.text(
        x(3), y(3 * bandwidth) - 12, f"a copy: {bandwidth:.1f} TB/s", "quiet", anchor="end"
    )
    bare_text = f"the bare product in cuBLASLt: {peak:.0f} TFLOP/s"
    drawing.text(left + width, y(peak) - 12, bare_text, "quiet", anchor="end")
    relu = max((each for each in ours if each["op"] == "relu"), key=lambda r: r["bytes"])
    speeds = []
    for record in (relu, *(each for each in ours if each["op"] == "linear_relu")):
        speed = operations(record) / record["median_us"] / 1e6
        place = x(operations(record) / record["bytes"]), y(speed)
        drawing.dot(*place, colors.module)
        if speed > peak / 2:
            speeds.append(speed)
            continue
        rows = "" if record is relu else f" of {record['shape'].split('x')[0]} rows"
        label = f"{record['op']}{rows}: {speed:.3g} TFLOP/s"
        drawing.text(place[0] + 12, place[1] + 5, label, size=12)
    label = f"linear_relu of 8,192 rows: {min(speeds):.0f} TFLOP/s and more"
    drawing.text(left + width, y(peak) + 32, label, anchor="end", size=12)
    return drawing.svg(
        "Speed of relu and of linear layers, below the limits of memory and products"
    )


def growth(colors: Colors) -> str:
    drawing = Drawing(880, 330, colors)
    bottom, width, height = 260, 220, 190
    drawing.text(20, 26, "As work grows: ours, and PyTorch dashed", "bold")

    def times(each: list[dict[str, Any]], op: str, by: str, who: str) -> dict[float, float]:
        return {r[by]: r["median_us"] for r in each if r["op"] == op and r["contender"] == who}

    def draw(
        plot: Plot, title: str, name: str, by: str, labels: Mapping[str, tuple[float, float]]
    ) -> None:
        drawing.text(plot.left, 56, title, "quiet", size=12)
        each = records(name)
        for op, (column, row) in labels.items():
            plot.curve(times(each, op, by, "torch"), dashed=True)
            plot.curve(times(each, op, by, "cudarelu"))
            drawing.text(plot.x(column), plot.y(row), op, anchor="middle", size=12)

    plot = Plot(drawing, (70, bottom, width, height), (1, 2**31), (1, 1e4))
    sizes = {2.0**power: f"2^{power}" for power in (0, 10, 20, 31)}
    plot.ticks(sizes, {10.0**power: f"{10**power:,}" for power in range(5)})
    labels = {"relu": (8, 2.4), "softmax": (2**14, 9)}
    draw(plot, "µs, elements, one H100", "2026-11-27-h100-growth", "elements", labels)

    plot = Plot(drawing, (370, bottom, width, height), (1, 64), (10, 1e4))
    threads = {float(count): str(count) for count in (1, 2, 4, 8, 16, 32, 64)}
    plot.ticks(threads, {10.0**power: f"{10**power:,}" for power in range(1, 5)})
    labels = {"sum_rows": (2, 150), "softmax": (4, 3000)}
    draw(plot, "µs, threads, 2^22 elements", "2026-11-27-cpu-threads", "threads", labels)

    plot = Plot(drawing, (660, bottom, width - 20, height), (1, 4), (2e6, 2e7))
    plot.ticks({1.0: "1", 2.0: "2", 4.0: "4"}, {2e6: "2", 5e6: "5", 1e7: "10", 2e7: "20"})
    title = "million tokens a second, GPUs, training"
    drawing.text(plot.left - 24, 56, title, "quiet", size=12)
    scaling = json.loads((RESULTS / "2026-11-27-h100-x4-scaling.json").read_text())
    weak = scaling["2048 sequences"]["weak"]
    for who, dashed in (("torch", True), ("ours", False)):
        speeds = {int(gpus): each[who]["tokens per second"] for gpus, each in weak.items()}
        plot.curve(speeds, dashed=dashed)
    return drawing.svg("Time against elements and threads, and speed against the number of GPUs")


PICTURES: dict[str, Callable[[Colors], str]] = {
    "overview": overview,
    "call": call,
    "cuda-graph": cuda_graph,
    "roofline": roofline,
    "growth": growth,
}


def files() -> dict[str, str]:
    """The text of each file, by name."""
    return {
        f"{name}-{scheme}.svg": draw(colors)
        for name, draw in PICTURES.items()
        for scheme, colors in SCHEMES.items()
    }


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text)
