"""Tables, errors and the page of a run."""

from __future__ import annotations

from cudarelu.__main__ import main
from cudarelu.bench import records, report
from support.bench import bench


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
