"""How docstrings become the API reference: formulae and doctests as Markdown, components as they are called."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Docstrings of this project are plain text with ``code``; a component is called without its context."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Escape what Markdown would take for markup."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_function_instance(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """``bernoulli(prob=..., varying=...)`` gives a Component."""
        if any(str(decorator.value) == "component" for decorator in func.decorators):
            del func.parameters["context"]
            func.returns = "Component"


def as_markdown(text: str) -> str:
    """Doctests fenced; ``*``, ``<`` and ``[`` outside of code as themselves.

    >>> print(as_markdown("a*b of ``x*``"))
    a\\*b of ``x*``
    """
    blocks = []
    for block in re.split(r"\n\s*\n", text):
        doctest = re.search(r"^>>> .*", block, re.MULTILINE | re.DOTALL)
        before = block[: doctest.start()] if doctest else block
        if before.strip():
            blocks.append(before.rstrip() if before.startswith("    ") else escaped(before.rstrip()))
        if doctest:
            blocks.append(f"```pycon\n{doctest[0].rstrip()}\n```")
    return "\n\n".join(blocks)


def escaped(text: str) -> str:
    """Outside of ``code``."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text, flags=re.DOTALL)
    return "".join(
        part if i % 2 else re.sub(r"([*\[])", r"\\\1", part).replace("<", "&lt;") for i, part in enumerate(parts)
    )
