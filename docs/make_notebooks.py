"""Notebooks from the scripts of docs/notebooks: python docs/make_notebooks.py [--check].

``# %%`` begins a cell of code, ``# %% [markdown]`` one of text. Notebooks are executed and kept with their outputs.
``--check`` executes what is there and changes nothing: a notebook that fails, or is not its script's, ends it with 1.
"""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent / "notebooks"


def cells_of(script: str) -> list[nbformat.NotebookNode]:
    """The cells of a script."""
    cells = []
    for i, (kind, text) in enumerate(re.findall(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", script, re.M | re.S)):
        if kind:
            cell = nbformat.v4.new_markdown_cell(re.sub(r"^# ?", "", text.strip(), flags=re.MULTILINE))
        else:
            cell = nbformat.v4.new_code_cell(text.strip())
        cell.id = f"cell-{i}"
        cells.append(cell)
    return cells


def notebook_of(script: Path) -> nbformat.NotebookNode:
    """The notebook, not yet executed."""
    notebook = nbformat.v4.new_notebook(cells=cells_of(script.read_text(encoding="utf-8")))
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


def executed(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """With its outputs; an error in a cell is raised."""
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}
    notebook.metadata.pop("language_info", None)
    return notebook


def keep_figure(notebook: nbformat.NotebookNode, name: str) -> None:
    """The picture of a notebook that docs/theory.md shows too."""
    path = FOLDER.parent / "figures" / f"{name}.png"
    if path.is_file():
        data = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
        path.write_bytes(base64.b64decode(next(part["image/png"] for part in data if "image/png" in part)))


def main() -> None:
    """All of them, or with --check their state."""
    for script in sorted(FOLDER.glob("*.py")):
        path, notebook = script.with_suffix(".ipynb"), notebook_of(script)
        if "--check" in sys.argv:
            stored = nbformat.read(path, as_version=4)
            if [cell.source for cell in stored.cells] != [cell.source for cell in notebook.cells]:
                sys.exit(f"{path.name}: is not what {script.name} gives; run python docs/make_notebooks.py")
            executed(notebook)
        else:
            nbformat.write(executed(notebook), path)
            keep_figure(notebook, path.stem)
            print(f"{path}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
