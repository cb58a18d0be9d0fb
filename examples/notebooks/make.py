"""Makes the notebooks from the examples that have cells.

pip install jupytext
python examples/notebooks/make.py
"""

from __future__ import annotations

from pathlib import Path

import jupytext

FOLDER = Path(__file__).parent


def notebooks() -> dict[str, str]:
    """The text of each notebook, by name."""
    made = {}
    for script in sorted(FOLDER.parent.glob("*.py")):
        if not script.read_text().startswith("# %%"):
            continue
        notebook = jupytext.read(script)
        for number, cell in enumerate(notebook.cells):
            cell.id = f"cell-{number}"  # else it is random
        notebook.metadata = {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
        made[f"{script.stem}.ipynb"] = jupytext.writes(notebook, fmt="ipynb")
    return made


if __name__ == "__main__":
    for name, text in notebooks().items():
        (FOLDER / name).write_text(text)
