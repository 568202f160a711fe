"""How docstrings become the API reference: formulae and doctests as Markdown, components as they are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Docstrings of this project are plain text with ``code``; a component is called without its context."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Escape what Markdown would take for markup; parameters as a list."""
        if obj.docstring is not None:
            names = [parameter.name for parameter in obj.parameters] if obj.is_function else []
            obj.docstring.value = as_markdown(obj.docstring.value, names)

    def on_function_instance(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """``bernoulli(prob=..., varying=...)`` gives a Component."""
        for decorator in func.decorators:
            gives = {"component": "Component", "loader": "Data"}.get(str(decorator.value))
            if gives is not None:
                del func.parameters["context"]
                func.returns = gives


def as_markdown(text: str, parameters: Sequence[str] = ()) -> str:
    """Doctests fenced, "name: what it is" of parameters as a list, ``*``, ``<`` and ``[`` as themselves.

    >>> print(as_markdown("a*b of ``x*``"))
    a\\*b of ``x*``
    """
    blocks = []
    for block in re.split(r"\n\s*\n", text):
        doctest = re.search(r"^>>> .*", block, re.MULTILINE | re.DOTALL)
        before = block[: doctest.start()] if doctest else block
        if before.strip():
            text = before.rstrip()
            blocks.append(text if text.startswith("    ") else listed(escaped(text), parameters))
        if doctest:
            blocks.append(f"```pycon\n{doctest[0].rstrip()}\n```")
    return "\n\n".join(blocks)


def listed(text: str, parameters: Sequence[str]) -> str:
    """A sentence that begins with parameters and a colon begins an item of a list."""
    if not parameters:
        return text
    name = rf"(?:``)?(?:{'|'.join(map(re.escape, parameters))})(?:``)?"
    item = re.compile(rf"(?:^|(?<=[.;])\s+)({name}(?:, {name})*):\s+")
    if len(item.findall(text)) < 2:
        return text
    return item.sub(lambda match: f"\n\n* {match[1] if '`' in match[1] else f'`{match[1]}`'}: ", text).strip()


def escaped(text: str) -> str:
    """Outside of ``code``."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text, flags=re.DOTALL)
    return "".join(
        part if i % 2 else re.sub(r"([*\[])", r"\\\1", part).replace("<", "&lt;") for i, part in enumerate(parts)
    )
