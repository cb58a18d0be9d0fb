"""Plots of a run, and the page with them."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys

import pytest

from cudarelu.bench import plots, records, report
from support.bench import TINY, bench


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is missing")
@pytest.mark.slow
def test_plots(tiny, tmp_path, capsys):
    content = records.load(tiny)
    for each in list(content["records"]):  # a third size
        content["records"].append(each | {"elements": 1 << 17, "shape": "131072"})
    (tmp_path / "a.jsonl").write_text(records.lines(content))
    assert bench("plot", tmp_path / "a.jsonl") == 0
    stems = ("cpu-sizes-bias_relu-loop", "cpu-sizes-relu-loop", "roofline")
    names = [f"{stem}.{suffix}" for stem in stems for suffix in ("png", "svg")]
    assert sorted(path.name for path in (tmp_path / "a-plots").iterdir()) == names
    assert all(path.stat().st_size > 10_000 for path in (tmp_path / "a-plots").iterdir())


def with_threads(content, counts):
    """Adds records of relu of 1,024 with more threads; ours takes 80 us divided by the threads, and
    torch always 100 us."""
    found = [each for each in content["records"] if (each["op"], each["shape"]) == ("relu", "1024")]
    content["records"] = [each for each in content["records"] if each not in found]
    for each in found:
        for threads in counts if each["threads"] == 1 else ():
            us = 80 / threads if each["contender"] == "cudarelu" else 100
            times = {"median_us": us, "p10_us": us, "p90_us": us, "threads": threads}
            content["records"].append(each | {"suite": "cpu-threads"} | times)


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is missing")
def test_time_against_threads(tiny):
    content = records.load(tiny)
    assert not [*plots.figures({"": content})]  # two sizes, and one and two threads
    with_threads(content, [4, 1, 2, 8])
    ((key, figure),) = plots.figures({"": content})
    assert key == ("cpu-threads", "relu", "loop, threads")
    (axes,) = figure.axes
    assert axes.get_title() == "relu float32\n1024"
    drawn = {line.get_label(): [list(each) for each in line.get_data()] for line in axes.lines}
    counts, fewer = [1, 2, 4, 8], [80, 40, 20, 10]
    assert drawn == {
        "cudarelu": [counts, fewer],
        "torch": [counts, [100] * 4],
        "ideal": [counts, fewer],
    }
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "4", "8"]


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is missing")
@pytest.mark.slow
def test_threads_on_a_page_and_in_a_folder(tiny, tmp_path):
    content = records.load(tiny)
    with_threads(content, [1, 2, 4])
    (tmp_path / "a.jsonl").write_text(records.lines(content))
    assert bench("plot", tmp_path / "a.jsonl") == 0
    assert (tmp_path / "a-plots/cpu-threads-relu-loop-threads.svg").exists()
    assert bench("page", tmp_path / "a.jsonl", "--out", tmp_path / "a.html") == 0
    assert "<h3>cpu-threads: loop, threads</h3>" in (tmp_path / "a.html").read_text()


def point(op, operations, us, **other):
    """A record of 1,000 bytes and 100 elements."""
    record = {"op": op, "operations": operations, "bytes": 1000, "elements": 100, "median_us": us}
    record |= {"gb_per_s": 1 / us, "contender": "cudarelu", "dtype": "float32", "device": "cuda"}
    return record | {"regime": "graph, rotating"} | other


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is missing")
def test_a_roofline():
    """A dot for the fastest point of each op, out of the cache if there is one."""
    found = [
        point("relu", 100, 2.0),
        point("relu", 100, 1.0, regime="graph, hot"),
        point("relu", 100, 4.0),
        point("add", 100, 2.1),
        point("tanh", 100, 5.0, regime="graph, hot"),
        point("matmul", 500_000, 3.0),
        point("matmul", 500_000, 2.5, contender="cublaslt"),
        point("matmul", 500_000, 1.0, dtype="bfloat16", contender="cublaslt"),
        point("attention", None, 1.0),
        point("relu", 100, 0.1, device="cpu"),
        point("relu", 100, 1.0, contender="copy"),
        point("relu", 100, 0.5, contender="copy", regime="graph, hot"),
        {"op": "mul", "contender": "torch", "failed": "no"},
    ]
    figure = plots.roofline({"records": found, "machine": {"gpu": "a GPU"}})
    (axes,) = figure.axes
    dots, *_ = axes.lines
    expected = [(0.1, 100 / 2.0), (0.1, 100 / 2.1), (0.1, 100 / 5.0), (500, 500_000 / 3.0)]
    assert sorted(zip(*dots.get_data(), strict=True)) == sorted((x, y * 1e6) for x, y in expected)
    assert {text.get_text() for text in axes.texts} == {"add, relu", "tanh", "matmul"}
    roofs = {line.get_label(): max(line.get_ydata()) for line in axes.lines[1:]}
    assert roofs == pytest.approx(
        {
            "fastest copy, 1 GB/s": 5e11,  # as far as the ridge
            "fastest product in float32, 0.2 Tflop/s": 2e11,
            "fastest product in bfloat16, 0.5 Tflop/s": 5e11,
        }
    )
    assert plots.roofline({"records": found[-1:], "machine": {}}) is None


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is missing")
@pytest.mark.slow
def test_the_texts_of_a_roofline_do_not_overlap():
    found = [point(f"an_op_with_a_long_name_{i}", 100, 1.5 ** (i // 4)) for i in range(40)]
    figure = plots.roofline({"records": found, "machine": {"gpu": "a GPU"}})
    figure.canvas.draw()
    from matplotlib.text import Text  # whose extent leaves out the line to the dot

    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]
    assert len(boxes) == 10
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is missing")
def test_a_page(tiny, tmp_path, capsys):
    """One file with what the records say; nothing in it is fetched."""
    content = records.load(tiny)
    for each in list(content["records"]):  # a third size
        content["records"].append(each | {"elements": 1 << 17, "shape": "131072"})
    first, second = tmp_path / "a.jsonl", tmp_path / "<b>.jsonl"
    first.write_text(records.lines(content))
    content["machine"]["torch"] = "another"
    for each in content["records"]:
        each |= {name: 2 * each[name] for name in ("median_us", "p10_us", "p90_us")}
    second.write_text(records.lines(content))
    html = tmp_path / "page.html"

    assert bench("page", first, "--out", html) == 0
    assert f"wrote {html}" in capsys.readouterr().out
    text = html.read_text()
    drawn = re.findall("<summary>(.*)</summary>", text)
    assert drawn == ["bias_relu", "relu"]
    assert text.count("<svg") == 4  # an overview, a roofline and a figure for each op
    assert "cpu: against torch" in text
    assert "<td>every op, CPU</td>" in text
    assert "<td>0 (0)</td>" in text
    assert not re.search(r"(src|href)=\"[^#]", text.replace("xlink:href", "href"))

    assert bench("page", first, second, "--out", html) == 0
    text = html.read_text()
    assert '<td class="differs">another</td>' in text
    assert "<th>&lt;b&gt;</th>" in text
    assert "<b>" not in text
    assert "the time in a divided by that in &lt;b&gt;" in text
    assert re.search(r"<summary>What became slower: \d+ of \d+ common records", text)
    assert "2.00 times" in text
    assert text.count("<svg") == 6
    assert "stroke-dasharray" in text


def with_kernels(content, sizes_and_kernels):
    """Adds records on CUDA: of relu, with a copy of 4 elements; of matmul; and of attention."""
    identity = content["records"][0] | {"suite": "test", "device": "cuda", "threads": None}
    identity |= {"attributes": {}, "regime": "graph, hot", "gb_per_s": 100.0}
    ours = {"contender": "cudarelu"}
    copy = {"contender": "copy", "times_ours": [0.5, 0.4, 0.6], "gb_per_s": 400.0}
    product = {"contender": "cublaslt", "times_ours": [0.9, 0.8, 1.0]}
    for size, kernels in sizes_and_kernels:
        relu = identity | {"op": "relu", "shape": str(size), "elements": size, "columns": size}
        relu |= {"operations": size}
        content["records"].append(relu | ours | {"kernels": kernels})
        content["records"] += [relu | copy] if size == 4 else []
    for op, operations in (("matmul", 1024), ("attention", None)):
        other = identity | {"op": op, "shape": "8x8", "elements": 64, "operations": operations}
        content["records"].append(other | ours | {"kernels": ["multiply<T>"]})
        content["records"] += [other | product] if operations else []


def test_which_kernel_runs(tiny):
    """Neighbouring sizes with the same kernels are one row, and sizes are in order. The limit is
    the copy at a point, or else the fastest copy; of a product, cuBLASLt."""
    content = records.load(tiny)
    assert report.kernel_rows(content) == {}
    with_kernels(content, [(1024, ["b"]), (4, ["a<T>"]), (64, ["a<T>"]), (9999, ["b", "b", "c"])])
    dtype, regime = "float32", "graph, hot"
    assert report.kernel_rows(content) == {
        "relu": [
            report.KernelRow(dtype, regime, "4 to 64", ["a<T>"], "0.5"),
            report.KernelRow(dtype, regime, "1024", ["b"], "0.25"),
            report.KernelRow(dtype, regime, "9999", ["2 x b", "c"], "0.25"),
        ],
        "matmul": [report.KernelRow(dtype, regime, "8x8", ["multiply<T>"], "0.9")],
        "attention": [report.KernelRow(dtype, regime, "8x8", ["multiply<T>"], "")],
    }


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is missing")
@pytest.mark.slow
def test_a_page_says_which_kernel_runs(tiny, tmp_path):
    content = records.load(tiny)
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    html = tmp_path / "page.html"
    first.write_text(records.lines(content))
    with_kernels(content, [(4, ["a<T>"])])
    second.write_text(records.lines(content))
    assert bench("page", first, "--out", html) == 0
    assert "Which kernel runs" not in html.read_text()
    assert bench("page", first, second, "--out", html) == 0
    text = html.read_text()
    assert text.count("<h3>Which kernel runs: b</h3>") == 3  # relu, matmul, attention
    assert "Which kernel runs: a" not in text
    cells = (
        "<td>float32</td><td>graph, hot</td><td>4</td><td><code>a&lt;T&gt;</code></td><td>0.5</td>"
    )
    assert cells in text


def test_a_page_is_of_two_files_at_most(tiny, tmp_path, monkeypatch, capsys):
    html = tmp_path / "page.html"
    assert bench("page", tiny, tiny, tiny, "--out", html) == 2
    assert "a page compares two files, not 3" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert bench("page", tiny, "--out", html) == 2
    assert "the page needs Jinja2: pip install jinja2" in capsys.readouterr().err
    assert not html.exists()


def test_plots_need_matplotlib(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (tmp_path / "a.jsonl").write_text(tiny.read_text())
    assert bench("plot", tmp_path / "a.jsonl") == 2
    assert "plots need matplotlib" in capsys.readouterr().err
    assert bench(*TINY, "--out", tmp_path / "a.jsonl", "--resume") == 0
    assert "no plots: plots need matplotlib" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
