"""The suites of the benchmarks: their points, sizes and threads."""

from __future__ import annotations

import dataclasses

import pytest

from cudarelu.bench import measure, records, regimes, suites
from support.bench import OPS


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
