"""The documentation: its commands and snippets run, its tables name what is there."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedpbc.algorithms import ALGORITHMS
from fedpbc.core.schema import bind_component, options_of
from fedpbc.data import DATA, PARTITIONS
from fedpbc.experiment.grid import Experiment
from fedpbc.experiment.keys import settings
from fedpbc.experiment.load import load_experiment, shipped_experiments
from fedpbc.experiment.overrides import parse_override
from fedpbc.links import LINKS
from fedpbc.links.common.probability import PROBABILITIES
from fedpbc.links.common.variation import VARIATIONS
from fedpbc.models import MODELS
from fedpbc.problems import PROBLEMS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
KEYS = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_python_example_prints_the_numbers_the_readme_states():
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    stated = re.findall(r"`(fedavg|fedpbc) ([\d.]+)`", README)
    measured = [line.split() for line in printed.getvalue().splitlines()]
    assert [name for name, _ in stated] == [name for name, _ in measured]
    for (_, a), (_, b) in zip(stated, measured, strict=True):
        assert float(a) == pytest.approx(float(b), abs=0.02)


def test_the_toml_example_is_an_experiment():
    table = tomllib.loads(re.search(r"```toml\n(.*?)```", README, re.DOTALL)[1])
    assert Experiment.from_table(table).name == "mine"


@pytest.mark.parametrize("page", [README, KEYS])
def test_commands_in_the_pages_are_right(page):
    commands = re.findall(r"^ {4}(fedpbc run .*)$", page, re.MULTILINE)
    assert commands
    for command in commands:
        words = shlex.split(command, comments=True)
        if words[2] not in shipped_experiments():
            continue
        overrides = dict(parse_override(words[i + 1]) for i, word in enumerate(words) if word == "--set")
        load_experiment(words[2], overrides)


def test_every_key_and_component_is_documented_with_its_default():
    for key, option in options_of(settings).items():
        row = re.search(rf"^\| `{key}` \| (.*?) \|", KEYS, re.MULTILINE)
        assert row, key
        default = "required" if option.default is option.empty else str(option.default).replace("None", "none")
        assert row[1].strip("`").replace('"', "'").strip("'") == default.strip("'"), key
    for kind in (PROBLEMS, LINKS, ALGORITHMS, PROBABILITIES, VARIATIONS, MODELS, DATA, PARTITIONS):
        for name, factory in kind.registry.items():
            if name in ("constant", "vector", "file", "none"):  # written as plain values
                continue
            if factory.from_outside:  # registered by another test of this process
                continue
            assert f"`{name}`" in KEYS or f'"{name}"' in KEYS, name
            for option in options_of(factory):
                assert option in KEYS, f"{name}.{option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_metrics_of_the_run_directory_page_are_the_real_ones():
    page = (ROOT / "docs" / "run-directory.md").read_text(encoding="utf-8")
    for problem in ("quadratic", "synthetic"):
        table = {
            "name": "x", "rounds": 1, "local_steps": 1, "learning_rate": 0.1, "seeds": [0],
            "problem": {"name": problem, "num_clients": 3}, "links": [{"name": "bernoulli", "prob": 1}],
            "algorithms": [{"name": "fedpbc"}],
        }  # fmt: skip
        import fedpbc

        (cell,) = fedpbc.run(Experiment.from_table(table)).cells.values()
        for name in cell.rows:
            metric = name.removeprefix("server_").removeprefix("mean_")
            assert f"`{metric}`" in page, name


def test_the_worked_example_of_the_theory_gives_the_numbers_it_states():
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "theory.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    given: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "theory.md", "exec"), given)
    weights = given["weights"] * len(given["p"])
    assert f"from {weights.min():.2f} / m to {weights.max():.2f} / m" in code
    assert f"# {given['limit'][0]:.1f}; the minimiser of F is {given['centers'].mean():.1f}" in code
    assert f"# {given['rho']:.4f}\n" in code
    assert f"# {given['rounds']}, then" in code
    assert 0 < given["eta"] < 1e-6


def test_the_figure_of_the_worked_example_is_the_notebook_s():
    notebook = json.loads((ROOT / "docs/notebooks/from_p_to_a_bound.ipynb").read_text(encoding="utf-8"))
    (picture,) = [o["data"]["image/png"] for c in notebook["cells"] for o in c.get("outputs", []) if "data" in o]
    assert base64.b64decode("".join(picture)) == (ROOT / "docs/figures/from_p_to_a_bound.png").read_bytes()


def test_the_recipes_for_data_are_what_loaders_take(tmp_path):
    """Every loader has one; each is checked as an experiment would check it, but for the files themselves."""
    page = (ROOT / "docs" / "howto" / "data-files.md").read_text(encoding="utf-8")
    tables = [tomllib.loads(text) for text in re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
    named = set()
    for table in tables:
        if "prob" in table:
            bind_component(PROBABILITIES, table["prob"], "prob", tmp_path)
        else:
            bound = bind_component(PROBLEMS, table["problem"], "problem", tmp_path)
            named.add(bound.options["data"].name)
    others = {"npz", "wine", "breast_cancer", "digits"}
    assert named | others >= {name for name, factory in DATA.registry.items() if not factory.from_outside}
    for name in others:
        assert f"`{name}`" in page or f".{name}" in page


def test_a_release_of_the_changelog_has_one_list_per_heading():
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert releases
    for release in releases:
        headings = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert len(headings) == len(set(headings)), headings
        assert set(headings) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_say_what_they_need_beside_the_simulator(page):
    """pandas and pytest come with no extra of ours."""
    text = page.read_text(encoding="utf-8")
    code = "".join(re.findall(r"^```(?:python|sh).*?^```", text, re.MULTILINE | re.DOTALL))
    words = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for package, use in (("pandas", r"to_pandas|import pandas"), ("pytest", r"-m pytest")):
        if re.search(use, code):
            assert re.search(rf"pip install {package}|{package} (and|for) ", words + code), package
