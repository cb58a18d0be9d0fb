"""python -m cudarelu bench: its statistics on example numbers, and its command on tiny cases."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import math
import re
import sys
from types import SimpleNamespace

import pytest
import torch

import cudarelu
from cudarelu.__main__ import main
from cudarelu.bench import (
    command,
    contenders,
    launches,
    measure,
    plots,
    records,
    regimes,
    report,
    rivals,
    statistics,
    suites,
)
from cudarelu.bench.accuracy import Check
from cudarelu.bench.cases import Case, clones, leads, sized, streams, with_rows
from cudarelu.testing import TOLERANCE
from cudarelu.testing.environment import torch_cuda_missing
from cudarelu.testing.reference import is_product
from support.cases import tier
from support.op_modules import LIBRARY, my, only_own_module

OPS = {op.name: op for op in cudarelu.ops()}
NEEDS_GPU = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
TINY = ["--suite", "cpu-sizes", "--op", "relu", "--op", "bias_relu", "--largest", "20000"]
TINY += ["--seconds", "0.001", "--commit", "test"]


@pytest.fixture(autouse=True)
def _without_other_modules():
    with only_own_module():
        yield


def bench(*arguments: object) -> int:
    return main(["bench", *map(str, arguments)])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The file of a tiny run on the CPU."""
    path = tmp_path_factory.mktemp("bench") / "a.jsonl"
    assert bench(*TINY, "--no-plots", "--out", path) == 0
    assert [*path.parent.iterdir()] == [path]
    return path


# Statistics


def test_spread():
    assert statistics.spread([*range(101)]) == (50, 10, 90)
    assert statistics.spread([3.0]) == (3, 3, 3)


def test_a_ratio_is_of_rounds():
    """The ratio does not change if the machine becomes three times slower during the run."""
    ours = [1.0, 1.0, 1.0, 3.0, 3.0, 3.0]
    assert statistics.ratio([2 * each for each in ours], ours) == (2, 2, 2)


def test_drift():
    assert statistics.drift([1.0, 1.0, 1.0, 1.5, 1.5]) == 0.5
    assert statistics.drift([1.0]) == 0


@pytest.mark.parametrize(
    ("after", "times"),
    [
        ((10.2, 10.0, 10.4), None),  # the spreads overlap
        ((10.4, 10.35, 10.5), None),  # the spreads do not overlap, but it is within 5 %
        ((12.0, 10.2, 14.0), None),  # slower, but noisy
        ((20.0, 19.0, 21.0), 2.0),
        ((5.0, 4.9, 5.1), None),  # faster
    ],
)
def test_slowdown(after, times):
    names = ("median_us", "p10_us", "p90_us")
    before = dict(zip(names, (10.0, 9.7, 10.3), strict=True))
    assert statistics.slowdown(before, dict(zip(names, after, strict=True)), 0.05) == times


# Regimes


def fail(error):
    """A function that raises the error for any arguments."""

    def function(*arguments):
        raise error

    return function


def test_contenders_take_turns():
    order = []
    samplers = {name: lambda name=name: order.append(name) or 1.0 for name in "abc"}
    times, failed = regimes.in_turns(samplers, 0, least=3)
    assert "".join(order) == "abcbcacab"
    assert times == dict.fromkeys("abc", [1.0] * 3)
    assert not failed


def test_a_contender_that_fails_is_left_out():
    samplers = {"a": lambda: 1.0, "b": fail(RuntimeError("first line\nsecond"))}
    times, failed = regimes.in_turns(samplers, 0, least=2)
    assert times == {"a": [1.0, 1.0]}
    assert failed == {"b": "RuntimeError: first line"}


def test_rounds_end_with_the_time(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(regimes.time, "perf_counter", lambda: next(clock))
    times, _ = regimes.in_turns({"a": lambda: 1.0}, 10, least=3)
    assert 8 <= len(times["a"]) <= 12
    times, _ = regimes.in_turns({"a": lambda: 1.0}, math.inf, most=20)
    assert len(times["a"]) == 20


def test_calls_and_buffers_of_a_graph():
    assert regimes.calls_per_graph("graph, hot", 1e-6) == 100
    assert regimes.calls_per_graph("graph, hot", 1e-4) == 5
    assert regimes.calls_per_graph("graph, rotating", 1.0) == 1
    assert regimes.calls_per_graph("cold", 1e-6) == 1
    cache = 60 << 20
    assert regimes.buffers_needed("graph, hot", 100, 1 << 10, cache) == 1
    assert regimes.buffers_needed("graph, rotating", 100, 1 << 10, cache) == 100
    assert regimes.buffers_needed("graph, rotating", 100, 10 << 20, cache) == 18
    assert regimes.buffers_needed("graph, rotating", 1, 1 << 30, cache) == 1


class FakeCuda:
    """Fakes the part of torch.cuda that a measurement uses; a capture runs the calls."""

    def __init__(self, monkeypatch):
        self.log = []
        fakes = {
            "CUDAGraph": lambda: self,
            "Event": lambda enable_timing: self,
            "current_stream": lambda: self,
            "stream": lambda stream: contextlib.nullcontext(),
            "synchronize": lambda: None,
            "empty_cache": lambda: None,
            "_sleep": lambda cycles: self.log.append("sleep"),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(regimes, "cache_bytes", lambda device: 1 << 20)
        monkeypatch.setattr(regimes, "_stream", lambda: self)  # its cache would keep the fake
        monkeypatch.setattr(regimes, "_large_buffer", lambda: self)

    def sum(self):
        self.log.append("evict")

    def capture_begin(self, capture_error_mode):
        self.log.append("begin")

    def capture_end(self):
        self.log.append("end")

    def replay(self):
        self.log.append("replay")

    def elapsed_time(self, end):
        return 2.0  # milliseconds

    def record(self):
        self.log.append("record")

    def wait_stream(self, stream):
        pass

    def synchronize(self):
        pass


@pytest.mark.parametrize(
    ("regime", "bytes_a_call", "before"),
    [
        ("cold", 1 << 10, ["evict"]),
        ("cold", 1 << 30, ["sleep"]),
        ("hot", 1 << 10, ["replay", "sleep"]),
        ("graph, rotating", 1 << 10, ["evict"]),
        ("graph, rotating", 1 << 20, ["sleep"]),
        ("graph, hot", 1 << 10, ["sleep"]),
    ],
)
def test_kernels(monkeypatch, regime, bytes_a_call, before):
    fake = FakeCuda(monkeypatch)
    called = []
    calls = [lambda each=each: called.append(each) for each in range(3)]
    sample = regimes.kernels(calls, regime, 8, bytes_a_call)
    assert called == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]  # each call warms up, then they alternate
    assert fake.log == ["begin", "end", "replay"]
    fake.log.clear()
    assert sample() == pytest.approx(2e-3 / 8)
    assert fake.log == [*before, "record", "replay", "record"]


def test_a_capture_that_fails_ends(monkeypatch):
    fake = FakeCuda(monkeypatch)
    results = iter([None])
    with pytest.raises(StopIteration):
        regimes.kernels([lambda: next(results)], "hot", 2, 1)
    assert fake.log == ["begin", "end"]


def test_the_fake_op_leaves_with_its_test():
    """A later test in this process that measures on CUDA must not use the fake stream."""
    before = regimes._stream.cache_info()
    with pytest.MonkeyPatch.context() as patch:
        FakeCuda(patch)
        regimes.kernels([lambda: None], "hot", 1, 1)
    assert regimes._stream.cache_info() == before


@pytest.mark.parametrize("suite", [s for s in suites.SUITES.values() if s.device == "cuda"])
def test_the_points_of_cuda(monkeypatch, suite):
    """Runs the code for CUDA with smaller cases on the CPU: one for each op, dtype and regime."""
    FakeCuda(monkeypatch)
    monkeypatch.setattr(rivals, "_library", fail(OSError("not built")))
    my()  # whose ops the suites of all ops have too
    seen = set()
    for point in suites.points([suite.name], without=["torch.compile", "max-autotune"]):
        case = point.case
        if (case.op.name, case.dtype, point.regime) in seen:
            continue
        seen.add((case.op.name, case.dtype, point.regime))
        leading = tuple(min(each, 3) for each in case.leading)
        sizes = case.op.with_multiples({name: min(each, 64) for name, each in case.sizes.items()})
        case = dataclasses.replace(case, leading=leading, sizes=sizes, device="cpu")
        found, missing = measure.measure(dataclasses.replace(point, case=case), 0)
        assert missing.keys() <= {"cub", "cublaslt", "cublaslt, fused", "naive", "pointops"}
        assert {each["contender"] for each in found} == {*point.contenders} - {*missing}
        assert not [each for each in found if "failed" in each]
    assert seen


# Kernels


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void cudarelu::elementwise::kernel<cudarelu::ops::Relu, 0, float, 4>("
            "cudarelu::elementwise::Operands<cudarelu::ops::Relu, float>, unsigned int, bool)",
            "kernel<Relu, 0, float, 4>",
        ),
        (
            "void cudarelu::gpu::hopper::multiply<cudarelu::BFloat16, true, true, "
            "cudarelu::gpu::hopper::Plan<128, 192, 4, true> >(cudarelu::Gemm, CUtensorMap_st)",
            "multiply<BFloat16, true, true, Plan<128, 192, 4, true>>",
        ),
        (
            "void cudarelu::gpu::(anonymous namespace)::float32_kernel<cudarelu::gpu::"
            "(anonymous namespace)::Tiling<64, 64, 16, 8, 2, 3, 3, false>, (cudarelu::gpu::"
            "(anonymous namespace)::Layout)2, (cudarelu::gpu::(anonymous namespace)::Layout)0>("
            "cudarelu::gpu::(anonymous namespace)::Arguments)",
            "float32_kernel<Tiling<64, 64, 16, 8, 2, 3, 3, false>, 2, 0>",
        ),
        (
            "void cudarelu::ops::layer_norm_gradient::sum_chunks<cudarelu::Half>(cudarelu::ops::"
            "layer_norm_gradient::Arguments<cudarelu::Half>, std::conditional<(is_same_v<"
            "cudarelu::Half, float>)||(is_same_v<float, float>), float, cudarelu::Half>::type*)",
            "sum_chunks<Half>",
        ),
        ("void f<unsigned char, 16ul, 3u, (bool)1>(unsigned char*)", "f<unsigned char, 16, 3, 1>"),
        ("cudarelu::ops::attention::(anonymous namespace)::clear(int*)", "clear"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
    ],
)
def test_the_short_name_of_a_kernel(name, short):
    assert launches.short_name(name) == short


class OnCuda(Case):
    """A case for CUDA whose tensors are on the CPU."""

    def inputs(self):
        return Case.inputs(dataclasses.replace(self, device="cpu"))


def events_of(*named):
    """A stand-in for torch.profiler.profile with events of these names and times."""
    events = [
        SimpleNamespace(name=name, device_type=kind, time_range=SimpleNamespace(start=start))
        for name, kind, start in named
    ]
    profiled = SimpleNamespace(events=lambda: events)
    return lambda activities: contextlib.nullcontext(profiled)


def kernels_in_records(monkeypatch, profile, path):
    FakeCuda(monkeypatch)
    monkeypatch.setattr(launches, "profile", profile)
    case = OnCuda(OPS["relu"], "float32", (1000,), {}, {})
    point = measure.Point("test", case, "graph, hot", ("cudarelu", "torch"))
    results = records.Results(path, {"processor": "one"}, resume=False)
    results.add(*measure.measure(point, 0))
    command._add_kernels(results, [point])
    found = records.load(path)["records"]
    assert not [each["failed"] for each in found if "failed" in each]
    return {each["contender"]: each.get("kernels") for each in found}


def test_the_kernels_of_a_record(monkeypatch, tmp_path):
    """Only of ours, in the order of their starts, without what runs on the CPU."""
    on_cuda, on_cpu = launches.DeviceType.CUDA, launches.DeviceType.CPU
    named = ("void b<ns::T>(int)", on_cuda, 5), ("cudaLaunchKernel", on_cpu, 1), ("a", on_cuda, 2)
    assert kernels_in_records(monkeypatch, events_of(*named), tmp_path / "a.jsonl") == {
        "cudarelu": ["a", "b<T>"],
        "torch": None,
    }


@pytest.mark.parametrize("profile", [fail(RuntimeError("no CUPTI")), events_of()])
def test_a_profiler_that_fails(monkeypatch, profile, tmp_path):
    expected = {"cudarelu": None, "torch": None}
    assert kernels_in_records(monkeypatch, profile, tmp_path / "a.jsonl") == expected


@NEEDS_GPU
def test_the_kernels_of_a_call():
    case = sized(OPS["relu"], "float32", 1 << 20)
    assert launches.kernels(case) == ["kernel<Relu, 0, float, 4>"]


# Cases


@pytest.mark.parametrize("name", OPS)
def test_every_op_has_cases(name):
    measured = {point.suite for point in suites.points(suites.SUITES, [name])}
    assert "cpu-sizes" in measured
    assert not streams(OPS[name]) or "bandwidth" in measured
    assert not OPS[name].elementwise or "sizes" in measured


def test_no_case_of_the_cpu_is_larger_than_the_elements_of_its_suite():
    """A few dimensions of 1,024 each would take gigabytes."""
    cases = [point.case for point in suites.points(["cpu-sizes", "ort-cpu-sizes"])]
    assert max(case.elements for case in cases) == 1 << 26
    assert all(case.elements <= 1 << 22 for case in cases if not streams(case.op))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(op.name, dtype, marks=tier(op.name, dtype))
        for op in OPS.values()
        for dtype in op.dtypes
    ],
)
def test_a_case_is_a_call(name, dtype):
    """The shapes of a case are those of the call, and the result is correct."""
    for case in (
        sized(OPS[name], dtype, 700, columns=50, device="cpu"),
        with_rows(OPS[name], dtype, 30, 40, device="cpu"),
    ):
        if not leads(OPS[name]) and not case.sizes.get("n", 0) > 40:
            continue
        inputs = case.inputs()
        outputs = contenders.CONTENDERS["cudarelu"](case)(inputs)()
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        for output, parameter in zip(outputs, case.op.outputs, strict=True):
            assert output.shape == case.shape(parameter)
            assert output.dtype == case.torch_dtype(parameter)
        check = Check(case, inputs)
        for contender in ("cudarelu", "torch") if dtype == "float32" else ("cudarelu",):
            bind = contenders.CONTENDERS[contender](check.case)
            if bind:
                error = check.error(bind(check.inputs))
                # Several products in turn add their errors.
                assert error <= TOLERANCE.get(dtype, 0) * (2 if is_product(OPS[name]) else 1)


def test_an_error_is_found():
    """Errors are found in the first and in the last row, and a NaN is an error."""
    case = with_rows(OPS["softmax"], "float32", 1000, 100, device="cpu")
    inputs = case.inputs()
    check = Check(case, inputs)
    right = torch.softmax(inputs[0], -1)
    assert check.error(lambda: right) < 1e-6
    for row in (0, -1):
        wrong = right.clone()
        wrong[row, 7] += right.max()
        assert check.error(lambda wrong=wrong: wrong) > 0.9
    wrong[0, 0] = math.nan
    with pytest.raises(ValueError, match="y is NaN"):
        check.error(lambda: wrong)


def test_bytes():
    """Each input that is read and each output counts once."""
    expected = {
        "relu": 2 * 32 * 64,
        "add": 3 * 32 * 64,
        "bias_relu": 2 * 32 * 64 + 64,
        "softmax_backward": 3 * 32 * 64,
        "sum_rows": 32 * 64 + 64,
        "expand_rows": 32 * 64 + 64,  # of `like`, only the shape is used
    }
    for name, elements in expected.items():
        assert with_rows(OPS[name], "float32", 32, 64).bytes == 4 * elements
    knn = Case(OPS["knn_query"], "float32", (), {"n": 100, "b": 4}, {"nsample": 5})
    assert knn.bytes == 4 * (100 * 3 + 4 + 2 * 100 * 5)


def test_operations():
    """Two for each term of a product, one for each element of another op's largest input."""
    products = [
        ("matmul", (3, 5), dict.fromkeys("mkn", 8)),
        ("linear_gelu", (3, 40), {"k": 8, "n": 8}),
        ("linear_weight_backward", (3, 40), {"k": 8, "n": 8}),
    ]
    for name, leading, sizes in products:
        case = Case(OPS[name], "float32", leading, sizes, {})
        assert case.operations == 2 * 15 * 8**3
    assert with_rows(OPS["bias_relu"], "float32", 32, 64).operations == 32 * 64
    sizes = dict.fromkeys(OPS["attention"].named_dimensions, 8)
    assert Case(OPS["attention"], "float32", (2,), sizes, {}).operations is None


def test_a_copy_moves_as_many_bytes_as_the_op():
    for name in ("relu", "softmax_backward", "bias_relu"):
        case = with_rows(OPS[name], "float16", 32, 65, device="cpu")
        copied = contenders.CONTENDERS["copy"](case)(case.inputs())()
        assert 0 <= 2 * copied.numel() * copied.itemsize - case.bytes < 16


def test_inputs():
    case = Case(OPS["knn_query"], "float32", (), {"n": 10, "b": 4}, {"nsample": 2}, "cpu")
    xyz, offset, *absent = case.inputs()
    assert xyz.shape == (10, 3)
    assert offset.tolist() == [2, 5, 7, 10]
    assert absent == [None, None]
    copies = clones([xyz, None], 2)
    assert copies[0][0] is xyz
    assert copies[1][0] is not xyz
    assert torch.equal(copies[1][0], xyz)
    (unsigned,) = sized(OPS["relu"], "uint8", 1000, device="cpu").inputs()
    assert unsigned.unique().numel() > 50


def test_rivals_are_of_ops():
    assert rivals.TORCH.keys() <= OPS.keys()


# The command


def test_a_run(tiny):
    content = records.load(tiny)
    assert content["machine"]["commit"] == "test"
    assert content["machine"]["torch"] == torch.__version__
    found = content["records"]
    assert tiny.read_text() == records.lines(content)
    assert tiny.read_text().count("\n") == 1 + len(found)
    points = list(suites.points(["cpu-sizes"], ["relu", "bias_relu"], 20000))
    assert len(points) == 8  # two ops, two sizes, one and two threads
    assert len({records.key(each) for each in found}) == len(found) == 2 * len(points)
    assert {each["contender"] for each in found} == {"cudarelu", "torch"}
    for each in found:
        assert "failed" not in each
        assert 0 < each["p10_us"] <= each["median_us"] <= each["p90_us"]
        assert each["gb_per_s"] == pytest.approx(each["bytes"] / each["median_us"] / 1e3, rel=1e-4)
        assert each["error"] <= TOLERANCE["float32"]
        assert each["median_us"] == float(f"{each['median_us']:.5g}")
        assert ("times_ours" in each) == (each["contender"] != "cudarelu")


def test_a_run_resumes(tiny, tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text(tiny.read_text())
    assert bench(*TINY, "--out", path) == 2
    assert "--resume" in capsys.readouterr().err
    assert path.read_text() == tiny.read_text()

    content = records.load(tiny)
    content["records"] = content["records"][:4]
    path.write_text(records.lines(content))
    assert bench(*TINY, "--out", path, "--resume") == 0
    assert capsys.readouterr().err.count("cpu-sizes: ") == 6  # the missing points
    assert records.load(path)["records"][:4] == content["records"]
    assert len(records.load(path)["records"]) == 16

    assert bench(*TINY[:-1], "another", "--out", path, "--resume") == 2
    assert "has the commit test, but this is another" in capsys.readouterr().err


def test_a_folder_that_does_not_exist(tmp_path, capsys):
    """It is an error before anything is measured."""
    assert bench(*TINY, "--out", tmp_path / "none" / "a.jsonl") == 2
    assert capsys.readouterr().err == f"error: there is no folder {tmp_path / 'none'}\n"


@pytest.mark.parametrize(("available", "gpu"), [(True, "GPU-12-ab"), (False, "0")])
def test_the_state_is_of_the_gpu_that_is_measured(monkeypatch, available, gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    properties = SimpleNamespace(uuid="12-ab")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(records, "_said", lambda *command: ", ".join([command[1]] * 4))
    assert set(records.gpu_state().values()) == {f"--id={gpu}"}


def test_a_file_is_of_a_run(tmp_path, capsys):
    for text in ("", "[]", '{"date": ""}', '{"machine": {"torch": 1}}\n{}', '{"machine": {'):
        (tmp_path / "x.jsonl").write_text(text)
        assert bench("table", tmp_path / "x.jsonl") == 2
        assert "x.jsonl is not a file of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "nothing"], "no suite 'nothing': there are cuda, cpu, bandwidth, "),
        (["--op", "nothing"], "no op 'nothing': there are add, "),
        (["--without", "nothing"], "no rival 'nothing': there are hand-written, torch, "),
        (["--without", "cudarelu"], "no rival 'cudarelu': there are hand-written, torch, "),
        (["--without", "cudarelu in ORT"], "no rival 'cudarelu in ORT': there are "),
    ],
)
def test_an_unknown_name(tmp_path, capsys, arguments, message):
    assert bench(*arguments, "--out", tmp_path / "a.jsonl") == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with CUDA runs them")
def test_a_suite_that_needs_cuda(tmp_path, capsys):
    assert bench("--suite", "knn", "--out", tmp_path / "a.jsonl") == 2
    assert "the suite knn needs CUDA" in capsys.readouterr().err


def test_a_failure_is_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(contenders.CONTENDERS, "torch", fail(RuntimeError("cannot")))
    monkeypatch.setitem(contenders.CONTENDERS, "ORT", fail(contenders.Missing("nothing there")))
    path = tmp_path / "a.jsonl"
    assert bench(*TINY, "--suite", "ort-cpu-sizes", "--out", path) == 0
    content = records.load(path)
    by_name = {each["contender"]: each for each in content["records"]}
    assert by_name["torch"]["failed"] == "RuntimeError: cannot"
    assert "failed" not in by_name["cudarelu"]
    assert by_name["cudarelu in ORT"]["error"] <= TOLERANCE["float32"]
    assert content["missing"] == {"ORT": "nothing there"}
    printed = capsys.readouterr().out
    assert (
        "- cpu-sizes: torch, relu float32 threads=1 of 1024, loop: RuntimeError: cannot" in printed
    )
    assert "Without ORT: nothing there" in printed


def test_a_failure_while_it_is_timed(monkeypatch):
    case = sized(OPS["relu"], "float32", 1000, device="cpu")
    point = measure.Point("test", case, "loop", ("cudarelu", "torch"))
    monkeypatch.setattr(regimes, "loop", lambda *each: fail(RuntimeError("too late")))
    found, _ = measure.measure(point, 0)
    assert {each["contender"]: each["failed"] for each in found} == dict.fromkeys(
        ["cudarelu", "torch"], "RuntimeError: too late"
    )


def test_a_lost_device_ends_the_run(tmp_path, monkeypatch, capsys):
    illegal = RuntimeError("an illegal memory access")
    monkeypatch.setitem(contenders.CONTENDERS, "torch", fail(illegal))
    monkeypatch.setattr(regimes, "synchronise", fail(RuntimeError("the context is gone")))
    path = tmp_path / "a.jsonl"
    assert bench(*TINY, "--out", path) == 2
    assert "continue with --resume: RuntimeError: the context is gone" in capsys.readouterr().err
    (record,) = records.load(path)["records"]
    assert record["failed"] == "RuntimeError: an illegal memory access"


def slowed(tiny, path, times):
    content = records.load(tiny)
    for each in content["records"]:
        if each["contender"] == "cudarelu" and each["op"] == "relu":
            for name in ("median_us", "p10_us", "p90_us"):
                each[name] *= times
    path.write_text(records.lines(content))
    return path


def test_compare(tiny, tmp_path, capsys):
    assert bench("compare", tiny, tiny) == 0
    assert capsys.readouterr().out == "0 of 16 common records are slower\n"
    other = slowed(tiny, tmp_path / "b.jsonl", 1.04)
    assert bench("compare", tiny, other) == 0
    capsys.readouterr()
    other = slowed(tiny, tmp_path / "b.jsonl", 1000)
    with pytest.raises(SystemExit) as exit_:
        bench("compare", tiny, other)
    assert exit_.value.code == 1
    printed = capsys.readouterr().out
    assert printed.count("cpu-sizes: cudarelu, relu float32") == 4
    assert "1000.00 times" in printed
    assert printed.endswith("4 of 16 common records are slower\n")


def test_table():
    """A goal is met only if the smallest ratio meets it. Other points and points that were not
    measured do not count."""
    identity = dict.fromkeys(records.IDENTITY) | {"suite": "bias-relu", "op": "bias_relu"}
    identity |= {"attributes": {"scale": 0.5}, "dtype": "float32", "shape": "8192x4096"}
    found = [
        identity | {"contender": name, "times_ours": [times, times, times], **other}
        for name, times, other in (
            ("torch", 3.5, {}),
            ("torch", 4.5, {"suite": "cpu-sizes"}),
            ("torch", 0.5, {"suite": "cpu-sizes", "dtype": "bfloat16"}),
            ("torch.compile", 1.1, {}),
        )
    ]
    text = report.table({"records": found, "missing": {}})
    of_float32 = "| bias_relu, 8192x4096, float32 |"
    assert f"{of_float32} torch | 3.3 | 3.5 | 3.5 | 1 | yes |" in text
    assert f"{of_float32} torch.compile | 1.05 | 1.1 | 1.1 | 1 | yes |" in text
    assert (
        "| every op, CPU | torch | 1 | 0.5 | 2.5 | 2 | no "
        "| bias_relu bfloat16 scale=0.5 of 8192x4096 |" in text
    )
    text = report.table({"records": found[:3], "missing": {}})
    assert f"{of_float32} torch.compile | 1.05 |  |  | 0 | not measured |  |" in text


def test_errors():
    """The largest of each op and dtype, whatever the sizes. Copies have none."""
    found = [
        {"op": op, "dtype": dtype, "contender": contender, "error": error}
        for op, dtype, contender, error in (
            ("tanh", "float32", "torch", 1e-7),
            ("tanh", "float32", "cudarelu", 1e-8),
            ("tanh", "float32", "cudarelu", 2.34e-7),
            ("tanh", "float32", "torch.compile", 1.0),
            ("tanh", "float16", "copy", None),
            ("add", "bfloat16", "cudarelu", 0.0),
            ("add", "int8", "cudarelu", 0.0),
        )
    ]
    assert report.errors({"records": found}).splitlines() == [
        "| op | float32 | float64 | float16 | bfloat16 |",
        "|---|---|---|---|---|",
        "| add |  |  |  | 0 |",
        "| tanh | 2.3e-07 (1e-07) |  |  |  |",
    ]


def test_what_the_reference_says_of_measurements():
    """The rivals' least and largest ratio over the sizes."""
    found = [
        {"op": "tanh", "dtype": "float32", "contender": contender, "error": 1e-7, "times_ours": [x]}
        for contender, x in (("copy", 0.5), ("copy", 1.0), ("copy", 0.9), ("torch", 2.0))
    ]
    found.append({"op": "tanh", "dtype": "float32", "contender": "cudarelu", "error": 2e-7})
    machine = {"gpu": "a GPU", "processor": "a CPU"}
    alone = {"op": "tanh", "dtype": "float64", "contender": "cudarelu", "error": 3e-16}
    notes = report.measured(
        {"records": found, "machine": machine},
        {"records": [alone], "machine": machine | {"gpu": None}},
    )
    assert notes == {
        "tanh": [
            ("Largest error on a GPU (PyTorch's)", "float32 2e-07 (1e-07)"),
            (
                "Speed on a GPU",
                "0.50 to 1.00 of a copy's speed, 0.90 at the median; "
                "2.00 to 2.00 times as fast as PyTorch, 2.00 at the median",
            ),
            ("Largest error on a CPU", "float64 3e-16"),
        ]
    }


def test_a_reference_with_the_records_of_a_run(tiny, capsys):
    assert main(["ops", "--markdown", "--records", str(tiny)]) == 0
    assert "\n| Largest error on" in capsys.readouterr().out
    assert main(["ops", "--records", str(tiny)]) == 2
    assert "--records is for --markdown" in capsys.readouterr().err


def test_the_table_of_a_run(tiny, capsys):
    assert bench("table", tiny) == 0
    printed = capsys.readouterr().out
    assert "| every op, CPU | torch | 1 |" in printed
    assert "| relu | 0 (0) |" in printed
    assert "knn_query" not in printed


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


@pytest.mark.parametrize("name", suites.SUITES)
def test_records_tell_the_points_of_a_suite_apart(name):
    """Kernels are added to records, and a run is resumed and compared, by these keys."""
    points = suites.points([name])
    keys = [records.key(point.identity | {"contender": "cudarelu"}) for point in points]
    assert len(set(keys)) == len(keys)


def test_an_op_of_one_size_is_measured_once(monkeypatch):
    (x,) = OPS["relu"].inputs
    three = dataclasses.replace(OPS["relu"], inputs=(dataclasses.replace(x, dims=(3,)),))
    monkeypatch.setattr(suites, "all_ops", lambda: [three])
    points = [point.identity for point in suites.points(["cpu-sizes"])]
    assert [(each["shape"], each["threads"]) for each in points] == [("3", 1), ("3", 2)]


def test_suites_of_a_device():
    names = [suite.name for suite in suites.suites(["cpu", "knn", "ort-cpu"])]
    of_the_cpu = [
        "cpu-every-op",
        "cpu-sizes",
        "ort-cpu-sizes",
        "cpu-short-rows",
        "cpu-threads",
        "cpu-libraries",
        "cpu-products",
        "ort-cpu-products",
        "ort-cpu",
    ]
    assert names == [*of_the_cpu, "knn"]


def test_growth_reaches_2_to_31():
    """Of each op there are 2^31 elements, of which a graph needs one set of buffers."""
    largest = {}
    for point in suites.points(["growth"]):
        largest[point.case.op.name] = point.case
        assert point.case.columns == (point.case.elements if point.case.op.elementwise else 1024)
        assert point.contenders == ("cudarelu", "torch", "copy")
    assert [*largest] == ["relu", "add", "softmax", "layer_norm"]
    for case in largest.values():
        assert case.elements == 1 << 31
        assert regimes.buffers_needed("graph, rotating", 1, case.bytes, 60 << 20) == 1


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (12, 4), (96, 7)])
def test_as_many_threads_as_the_process_may_use(monkeypatch, cores, count):
    monkeypatch.setattr(suites.os, "sched_getaffinity", lambda process: set(range(cores)))
    found = {}
    for point in suites.points(["cpu-threads"]):
        found.setdefault(point.case.op.name, []).append(point.case.threads)
    assert len(found) == 7
    assert all(each == [1, 2, 4, 8, 16, 32, 64][:count] for each in found.values())


def test_a_run_of_threads(monkeypatch, tmp_path):
    """Each op of the suite is measured, with the work of a small case."""
    monkeypatch.setattr(suites.os, "sched_getaffinity", lambda process: {0, 1})
    for point in suites.points(["cpu-threads"]):
        leading = tuple(min(each, 2) for each in point.case.leading)
        case = dataclasses.replace(point.case, leading=leading)
        found, _ = measure.measure(dataclasses.replace(point, case=case), 0)
        assert [each["contender"] for each in found] == ["cudarelu", "torch"]
        assert not [each["failed"] for each in found if "failed" in each]
        assert {each["threads"] for each in found} == {case.threads}


def test_the_list(capsys):
    assert bench("--list") == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == list(suites.SUITES)


@NEEDS_GPU
@pytest.mark.parametrize("name", [s.name for s in suites.SUITES.values() if s.device == "cuda"])
def test_a_suite_on_cuda(name, tmp_path):
    path = tmp_path / "a.jsonl"
    smallest = min((point.case.elements for point in suites.points([name])), default=0)
    options = ["--largest", max(1 << 18, smallest), "--seconds", 0]
    options += ["--without", "torch.compile", "--without", "max-autotune"]
    if name == "libraries":
        options += ["--library", LIBRARY]
    assert bench("--suite", name, *options, "--out", path) == 0
    found = records.load(path)["records"]
    assert not [each["failed"] for each in found if "failed" in each]
    assert all(each["kernels"] for each in found if each["contender"] == "cudarelu")
