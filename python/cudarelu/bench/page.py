"""A page in HTML, one file, of a run or of two that are compared. Needs matplotlib and Jinja2."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from .._table import FLOATING
from .plots import figures, ranges, roofline
from .records import key
from .report import compare, kernel_rows, largest_errors, outcomes

Content = dict[str, Any]

_TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { border: 1px solid #8886; padding: 0.2rem 0.6rem; text-align: left; }
td.differs, td.no { background: #f802; font-weight: 600; }
summary { cursor: pointer; font-weight: 600; padding: 0.3rem 0; }
svg { background: white; max-width: 100%; height: auto; }
pre { overflow-x: auto; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<h2>Machines</h2>
<div class="wide"><table>
<tr><th></th>{% for run in runs %}<th>{{ run }}</th>{% endfor %}</tr>
{% for name, values in machines %}
<tr><th>{{ name }}</th>
{% for value in values %}<td{% if values|unique|list|length > 1 %} class="differs"{% endif %}>
{{- value }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{% for name, figure in rooflines.items() if figure %}
{% if loop.first %}
<h2>Operations a second</h2>
<p>The fastest point of each op, out of the cache if it was measured there, below what the fastest
copy and the fastest product of matrices allow. An op that is no product has one operation for each
element.</p>
{% endif %}
{% if runs|length > 1 %}<h3>{{ name }}</h3>{% endif %}
<p>{{ figure|safe }}</p>
{% endfor %}
<h2>Ratios of each op</h2>
<p>The rival's time divided by ours: above 1, ours is faster. A copy moves as many bytes as the op,
so that its ratio is the part of the limit of memory that the op reaches. A dot is the median of all
points that were measured, a line goes from the least to the largest.</p>
{% for figure in overviews %}<p>{{ figure|safe }}</p>
{% endfor %}
{% if changes %}
<details><summary>What became slower: {{ changes[-1] }}</summary>
<p>Beyond the noise: by more than 5&nbsp;%, and the 10th and 90th percentiles do not overlap.</p>
<pre>{{ changes|join("\\n") }}</pre>
</details>
{% endif %}
<h2>Targets</h2>
<div class="wide"><table>
<tr><th>what</th><th>against</th><th>target</th>
{% for run in runs %}<th>least</th><th>median</th><th>points</th><th>met</th><th>where the least
{%- if runs|length > 1 %}, {{ run }}{% endif %}</th>{% endfor %}</tr>
{% for target, by_run in targets.items() %}
<tr>{% for cell in target %}<td>{{ cell }}</td>{% endfor %}
{% for run in runs %}{% for cell in by_run.get(run, [""] * 5) %}
<td{% if cell == "no" %} class="no"{% endif %}>{{ cell }}</td>{% endfor %}{% endfor %}</tr>
{% endfor %}
</table></div>
<h2>Largest errors</h2>
<p>Relative to the largest expected element; PyTorch's in brackets.</p>
{% for run, by_op in errors.items() %}
<div class="wide"><table>
<tr><th>{{ run }}</th>{% for dtype in dtypes %}<th>{{ dtype }}</th>{% endfor %}</tr>
{% for op, texts in by_op.items() %}
<tr><th>{{ op }}</th>{% for dtype in dtypes %}<td>{{ texts.get(dtype, "") }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{% endfor %}
<h2>Each op</h2>
{% for op in ops %}
<details><summary>{{ op }}</summary>
{% for run in runs if op in kernels[run] %}
<h3>Which kernel runs{% if runs|length > 1 %}: {{ run }}{% endif %}</h3>
<p>The limit is a copy of as many bytes, or, where none was measured, the regime's fastest copy; for
a product of matrices, cuBLASLt.</p>
<div class="wide"><table>
<tr><th>dtype</th><th>regime</th><th>sizes</th><th>kernels</th><th>part of the limit</th></tr>
{% for row in kernels[run][op] %}
<tr><td>{{ row.dtype }}</td><td>{{ row.regime }}</td><td>{{ row.sizes }}</td><td>
{%- for kernel in row.kernels %}<code>{{ kernel }}</code>{% if not loop.last %}<br>{% endif %}
{%- endfor %}</td><td>{{ row.part }}</td></tr>
{% endfor %}
</table></div>
{% endfor %}
{% for name, figure in drawn.get(op, []) %}
<h3>{{ name }}</h3>
{{ figure|safe }}
{% endfor %}
</details>
{% endfor %}
</body>
</html>
"""


def page(runs: Mapping[str, Content]) -> str:
    """Returns the page of one run or two, by name, of which the second is compared to the first.

    Raises ValueError if matplotlib or Jinja2 is missing.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise ValueError("the page needs Jinja2: pip install jinja2") from error
    contents = [*runs.values()]
    fields = dict.fromkeys(name for each in contents for name in each["machine"])
    targets: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for name, content in runs.items():
        for outcome in outcomes(content):
            targets.setdefault(outcome.key, {})[name] = outcome.cells()[len(outcome.key) :]
    drawn: dict[str, list[tuple[str, str]]] = {}
    for (suite, op, regime), figure in figures(runs):
        drawn.setdefault(op, []).append((f"{suite}: {regime}", _svg(figure)))
    kernels = {name: kernel_rows(content) for name, content in runs.items()}
    return (
        Environment(autoescape=True, trim_blocks=True)
        .from_string(_TEMPLATE)
        .render(
            title=f"Benchmark: {' and '.join(runs)}",
            runs=[*runs],
            machines=[
                (name, [each["machine"].get(name, "") for each in contents]) for name in fields
            ],
            changes=compare(*contents)[0] if len(contents) > 1 else [],
            rooflines={
                name: (figure := roofline(content)) and _svg(figure)
                for name, content in runs.items()
            },
            overviews=[_svg(ranges(title, values)) for title, values in _overviews(runs).items()],
            targets=targets,
            dtypes=FLOATING,
            errors={name: largest_errors(content) for name, content in runs.items()},
            ops=sorted({*drawn, *(op for rows in kernels.values() for op in rows)}),
            kernels=kernels,
            drawn=drawn,
        )
    )


def _overviews(runs: Mapping[str, Content]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """The ratios by title, op and run: of the second run to the first, and to each rival."""
    result: dict[str, dict[str, dict[str, list[float]]]] = {}

    def add(title: str, op: str, run: str, ratio: float) -> None:
        result.setdefault(title, {}).setdefault(op, {}).setdefault(run, []).append(ratio)

    if len(runs) > 1:
        (first, before), (second, after) = runs.items()
        earlier = {key(each): each for each in before["records"] if "failed" not in each}
        for each in after["records"]:
            if "failed" not in each and each["contender"] == "cudarelu" and key(each) in earlier:
                ratio = earlier[key(each)]["median_us"] / each["median_us"]
                title = f"{each['device']}: the time in {first} divided by that in {second}"
                add(title, each["op"], "", ratio)
    for name, content in runs.items():
        for each in content["records"]:
            if "times_ours" in each:
                title = f"{each['device']}: against {each['contender']}"
                add(title, each["op"], name, each["times_ours"][0])
    return {title: dict(sorted(values.items())) for title, values in result.items()}


def _svg(figure: Any) -> str:
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
