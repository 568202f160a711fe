"""Pages that are made from a template: what the studies share."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

import fedpbc

DOCS = Path(__file__).resolve().parent


def write_page(name: str, tables: Mapping[str, str]) -> None:
    """Fill docs/NAME.template.md with the tables and the versions, as docs/NAME.md."""
    version = f"fedpbc {fedpbc.__version__}, JAX {jax.__version__}, NumPy {np.__version__}"
    template = string.Template((DOCS / f"{name}.template.md").read_text(encoding="utf-8"))
    page = DOCS / f"{name}.md"
    page.write_text(template.substitute({**tables, "version": version}), encoding="utf-8")
    print(f"{page}: written")


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; every column but the first is right-aligned."""
    lines = [markdown_row(header), "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join(lines + [markdown_row(row) for row in rows])


def markdown_row(cells: list[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"
