"""What the site has beside docs/*.md: the pages outside docs/, sources that pages link to, notebooks, and the API.

Pages are written for a code host, with links relative to their place in the repository. Here every such link is turned
to where its target stands in the site; a link that leads nowhere is left, and ends the strict build.
"""

from __future__ import annotations

import base64
import importlib
import json
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<!\\)(!?\[[^\]\n]*\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".sh": "sh", ".md": "markdown"}
OPTIONS = (
    "Each call gives a component; nothing is computed before a run. `PositiveInt`, `Positive`, `NonNegative`, "
    "`Fraction` and `Annotated` numbers are numbers within bounds, which are checked; `Prob` is a number, one per "
    "client, a file or a [probability](probabilities.md), `Varying` a variation in time, `Server` a number or a server "
    "optimiser."
)
FIRST = [
    "simulate",
    "run",
    "read_run",
    "Run",
    "Measure",
    "Callback",
    "EarlyStop",
    "register",
    "component",
    "Component",
    "Factory",
    "Context",
    "load_experiment",
    "Experiment",
    "ConfigError",
    "FedpbcError",
]
API: dict[str, tuple[list[str], str]] = {
    "fedpbc": (["fedpbc"], "The calls of a script. All is imported on first use, so `import fedpbc` is light."),
    "data": (["fedpbc.data"], f"Data sets and their partition among clients. {OPTIONS}"),
    "models": (["fedpbc.models"], f"Models for classification and regression. {OPTIONS}"),
    "problems": (["fedpbc.problems"], f"Data, model, loss and metrics. {OPTIONS}"),
    "links": (["fedpbc.links"], f"Who is heard in which round. {OPTIONS}"),
    "probabilities": (
        ["fedpbc.probabilities", "fedpbc.variations", "fedpbc.schedules"],
        f"What links draw with, how it varies in time, and learning rates that fall. {OPTIONS}",
    ),
    "algorithms": (
        ["fedpbc.algorithms", "fedpbc.servers"],
        f"Federated methods, and what a server does with the sum of the updates (option `server`). {OPTIONS}",
    ),
    "testing": (["fedpbc.testing"], "What every component of the package is tested with, for yours."),
    "theory": (
        ["fedpbc.theory"],
        "What the paper proves, as numbers; NumPy only. [Theory](../theory.md) says what rests on what.",
    ),
    "audit": (["fedpbc.audit"], "A participation log, examined; the guide is [Audit](../audit.md)."),
    "flower": (
        ["fedpbc.flower"],
        "Strategies and a client mod for Flower; the guide is [Deployment](../deployment.md).",
    ),
    "types": (["fedpbc.core.types"], "What a link process, a problem and an algorithm are: for writing your own."),
}
REGISTRIES = {
    "fedpbc.probabilities": "PROBABILITIES",
    "fedpbc.variations": "VARIATIONS",
    "fedpbc.schedules": "SCHEDULES",
    "fedpbc.servers": "SERVERS",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that docs/ does not hold."""
    texts = {place: (ROOT / place).read_text(encoding="utf-8") for place in MOVED}
    for place, text in texts.items():
        files.append(File.generated(config, MOVED[place], content=text))
    for name, (modules, intro) in API.items():
        files.append(File.generated(config, f"api/{name}.md", content=api_page(modules, intro)))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        for uri, content in notebook_page(notebook).items():
            files.append(File.generated(config, uri, content=content))
    texts |= {f"docs/{f.src_uri}": f.content_string for f in files.documentation_pages() if not f.generated_by}
    wanted = [target for place, text in texts.items() for target in linked(place, text)]
    while wanted:  # a page of the repository that is added may link to more
        place = wanted.pop()
        uri = site_uri(place)
        if files.get_file_from_path(uri) is None and (ROOT / place).exists() and not place.startswith(".."):
            text = source_page(place)
            files.append(File.generated(config, uri, content=text))
            wanted += linked(place, text) if (ROOT / place).is_dir() or place.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links of the repository into links of the site."""
    here = page.file.src_uri
    place = repository_place(here)

    def turned(match: re.Match[str]) -> str:
        opening, target, anchor, closing = match.groups()
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
        if not (ROOT / wanted).exists():
            return match[0]
        uri = posixpath.relpath(site_uri(wanted), posixpath.dirname(here) or ".")
        return f"{opening}{uri}{anchor or ''}{closing}"

    return outside_fences(markdown, lambda text: LINK.sub(turned, text))


def outside_fences(markdown: str, change: Any) -> str:
    """``change`` the text of a page, but not its code."""
    parts = re.split(r"(^```.*?^```[^\n]*$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if i % 2 else change(part) for i, part in enumerate(parts))


def linked(place: str, text: str) -> list[str]:
    """Places in the repository that a page at ``place`` links to."""
    found: list[str] = []

    def note(part: str) -> str:
        targets = [match[2] for match in LINK.finditer(part)]
        found.extend(posixpath.normpath(posixpath.join(posixpath.dirname(place), target)) for target in targets)
        return part

    outside_fences(text, note)
    return found


def site_uri(place: str) -> str:
    """Where a file of the repository stands in the site's sources."""
    if place in MOVED:
        return MOVED[place]
    inside = place.startswith("docs/")
    if inside and place.endswith(".ipynb"):
        return place.removeprefix("docs/").removesuffix(".ipynb") + ".md"
    if inside and (ROOT / place).is_file() and not place.endswith(".py"):
        return place.removeprefix("docs/")
    return f"source/{place}" if place.endswith(".md") else f"source/{place}.md"


def repository_place(uri: str) -> str:
    """The inverse of ``site_uri``."""
    for place, moved in MOVED.items():
        if moved == uri:
            return place
    if uri.startswith("source/"):
        place = uri.removeprefix("source/")
        return place if (ROOT / place).exists() else place.removesuffix(".md")
    if uri.startswith("notebooks/"):
        return f"docs/{uri.removesuffix('.md')}.ipynb"
    return f"docs/{uri}"


def source_page(place: str) -> str:
    """A page that shows a file or lists a folder of the repository."""
    path = ROOT / place
    if path.is_dir():
        names = sorted(
            p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts
        )
        return f"# {place}/\n\n" + "".join(f"* [{name}]({posixpath.basename(place)}/{name})\n" for name in names)
    text = path.read_text(encoding="utf-8")
    if place.endswith(".md"):
        return text
    return f"# {place}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}````\n"


def notebook_page(path: Path) -> dict[str, str | bytes]:
    """A notebook with its outputs as a page, and the pictures of it."""
    pages: dict[str, str | bytes] = {}
    lines = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines.append(source)
            continue
        lines.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pages)}.png"
                pages[f"notebooks/{name}"] = base64.b64decode("".join(data["image/png"]))
                lines.append(f"![figure]({name})")
            elif "text/html" in data:
                lines.append("".join(data["text/html"]))
            else:
                text = "".join(output.get("text", data.get("text/plain", [])))
                lines.append(f"```text\n{text.rstrip()}\n```")
    lines.append(f"The notebook itself: `docs/notebooks/{path.name}` of the repository.")
    return {**pages, f"notebooks/{path.stem}.md": "\n\n".join(lines) + "\n"}


def api_page(modules: list[str], intro: str) -> str:
    """A page of the reference: each public name of the modules, from its docstring."""
    lines = [f"# {', '.join(modules)}", "", intro, ""]
    for module in modules:
        if len(modules) > 1:
            lines += [f"## {module}", ""]
        for name in public_names(module):
            lines += [f"::: {name}", "    options:", f"      heading_level: {2 + (len(modules) > 1)}"]
            if module == "fedpbc.flower" and is_strategy(module, name):
                lines.append("      members: false")  # options and rule; its methods are not for users
            lines.append("")
    return "\n".join(lines)


def public_names(module: str) -> list[str]:
    """Full names, where they are defined, of what a module offers."""
    loaded = resolve(module)
    if module in REGISTRIES:
        objects = list(getattr(loaded, REGISTRIES[module]).registry.values())
    elif module == "fedpbc.core.types":
        objects = [v for v in vars(loaded).values() if isinstance(v, type) and v.__module__ == module]
    elif module == "fedpbc":
        offered = [getattr(loaded, name) for name in dict.fromkeys([*FIRST, *loaded.__all__])]
        contract = [v for v in offered if getattr(v, "__module__", "") == "fedpbc.core.types"]  # on a page of its own
        objects = [v for v in offered if v not in contract or v.__name__ in FIRST]
    else:
        offered = getattr(loaded, "__all__", [name for name in vars(loaded) if not name.startswith("_")])
        objects = [v for v in (getattr(loaded, name) for name in offered) if isinstance(v, type | Callable)]
        objects = [v for v in objects if getattr(v, "__module__", "").startswith("fedpbc.")]
    functions = [getattr(obj, "function", obj) for obj in objects]
    return [f"{f.__module__}.{f.__qualname__}" for f in functions if hasattr(f, "__qualname__")]


def is_strategy(module: str, name: str) -> bool:
    """A class that a server of Flower is given."""
    loaded = resolve(module)
    strategy = getattr(loaded, name.rpartition(".")[2])
    base = getattr(loaded, "UnreliableClients", None)
    return isinstance(strategy, type) and base is not None and issubclass(strategy, base)


def resolve(name: str) -> Any:
    """A module by the name users write."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        package, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(package), attribute)
