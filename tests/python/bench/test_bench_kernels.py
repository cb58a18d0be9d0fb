"""The kernels that a call runs, in the records of the benchmarks."""

from __future__ import annotations

import contextlib
import dataclasses
from types import SimpleNamespace

import pytest

from cudarelu.bench import command, launches, measure, records
from cudarelu.bench.cases import Case, sized
from support.bench import NEEDS_GPU, OPS, FakeCuda, fail


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void cudarelu::elementwise::kernel<cudarelu::ops::Relu, 0, float, 4>("
            "cudarelu::elementwise::Operands<cudarelu::ops::Relu, float>, unsigned int, bool)",
            "kernel<Relu, 0, float, 4>",
        ),
        (
            "void cudarelu::gpu::sm90::multiply<cudarelu::BFloat16, true, true, "
            "cudarelu::gpu::sm90::Sm90Config<128, 192, 4, true> >(cudarelu::Gemm, CUtensorMap_st)",
            "multiply<BFloat16, true, true, Sm90Config<128, 192, 4, true>>",
        ),
        (
            "void cudarelu::gpu::(anonymous namespace)::simt_kernel<cudarelu::gpu::"
            "(anonymous namespace)::SimtConfig<64, 64, 16, 8, 2, 3, 3, false>, (cudarelu::gpu::"
            "(anonymous namespace)::Layout)2, (cudarelu::gpu::(anonymous namespace)::Layout)0>("
            "cudarelu::gpu::(anonymous namespace)::Arguments)",
            "simt_kernel<SimtConfig<64, 64, 16, 8, 2, 3, 3, false>, 2, 0>",
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
