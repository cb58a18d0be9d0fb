"""python -m cudarelu bench, on tiny cases."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cudarelu.bench import contenders, measure, records, regimes, suites
from cudarelu.bench.cases import sized
from cudarelu.testing import TOLERANCE
from support.bench import NEEDS_GPU, OPS, TINY, bench, fail
from support.op_modules import LIBRARY


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
    monkeypatch.setattr(records, "_output_of", lambda *command: ", ".join([command[1]] * 4))
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
