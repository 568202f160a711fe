"""The tutorial and the how-to pages do what they say, run as a reader would, in a folder of their own."""

from __future__ import annotations

import re
import shlex
import shutil
import sys

import pytest
from data_files import write_photos
from pages import DOCS, ROOT, blocks, execute, run_page

import fedpbc
from fedpbc.tuning.plan import plan_of


@pytest.mark.slow
def test_the_tutorial_from_data_to_conformance(tmp_path):
    said = run_page(DOCS / "tutorial.md", tmp_path)
    assert (tmp_path / "digits.png").is_file()
    assert (tmp_path / "compared" / "comparison.png").is_file()
    assert "2 passed" in said
    run = fedpbc.read_run(tmp_path / "runs" / "digits")
    assert len(run.cells) == 2 * 3 * 2
    accuracy = {
        a: run.final("server_test_accuracy", algorithm=a, links=run.groups[-1].links) for a in ("fedavg", "fedpbc")
    }
    assert accuracy["fedavg"] < 0.9, "the page says that FedAvg learns half the digits"
    assert fedpbc.read_run(tmp_path / "runs" / "again").table["rounds"] == 20


YOUR_IMAGES = DOCS / "howto" / "your-images.md"


@pytest.mark.release
def test_from_a_folder_of_images_to_a_method(tmp_path):
    pytest.importorskip("PIL")
    write_photos(tmp_path)
    said = run_page(YOUR_IMAGES, tmp_path)
    run = fedpbc.read_run(tmp_path / "runs" / "photos")
    assert len(run.cells) == 2 * 5 * 3
    assert (run.manifest["tuned_on"], run.manifest["reported_on"]) == ([3, 4], [0, 1, 2])
    assert {"server_worst_test_accuracy", "server_active_test_accuracy"} <= set(run.columns)
    assert (tmp_path / "who-has-what.png").is_file()
    assert " *" in said, "the best is marked"
    assert fedpbc.load_model(tmp_path / "winner.npz")[1].shape[0] == 4


def test_the_folder_and_the_log_of_that_page_fit_its_experiment(tmp_path):
    """Without its training: what it shows of the data is what a reader sees, the experiment takes the log as it is."""
    pytest.importorskip("PIL")
    write_photos(tmp_path)
    files, commands = blocks(YOUR_IMAGES)
    (tmp_path / "photos.toml").write_text(files["photos.toml"], encoding="utf-8")
    first, dealt = [shlex.split(command)[1:] for command in commands if command.startswith("fedpbc data")]
    shown = re.search(r"^```text\n(.*?)^```", YOUR_IMAGES.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[1]
    said = execute(tmp_path, [sys.executable, "-m", "fedpbc", *first])
    assert " ".join(shown.split()) in " ".join(said.split())
    assert "clients 12, with" in " ".join(execute(tmp_path, [sys.executable, "-m", "fedpbc", *dealt]).split())
    experiment = fedpbc.load_experiment(tmp_path / "photos.toml")
    assert [method.algorithm.name for method in plan_of(experiment).methods] == [
        "fedavg", "fedau", "fedpbc", "fedfade", "scaffold"
    ]  # fmt: skip
    problem = experiment.problem.build(experiment.context(3))
    log, fear = (links.build(experiment.context(3, problem)) for links in experiment.links)
    assert log.params["active"].shape == (experiment.rounds, 12)
    rust = problem.client_traits["share:rust"]
    prob = fear.params.prob.at(fear.params.prob.params, 0)
    assert (prob[rust.argmax()], prob[rust.argmin()]) == pytest.approx((0.1, 0.9))


@pytest.mark.release
@pytest.mark.parametrize("page", sorted({*(DOCS / "howto").glob("*.md")} - {YOUR_IMAGES}), ids=lambda path: path.stem)
def test_a_how_to_page(page, tmp_path):
    files, _ = blocks(page)
    assert files, "a how-to page shows code"
    run_page(page, tmp_path)


@pytest.mark.parametrize("page", [DOCS / "tutorial.md", *sorted((DOCS / "howto").glob("*.md"))], ids=lambda p: p.stem)
def test_every_block_is_executed_or_a_file(page):
    """No Python of these pages hides in an indented block, which nobody runs."""
    outside = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"^ {4}(import|from|fedpbc\.|run = |def )", outside, re.MULTILINE)


def test_a_page_that_does_not_work_is_found(tmp_path):
    page = tmp_path / "broken.md"
    page.write_text('```python\nraise SystemExit("no")\n```\n')
    with pytest.raises(AssertionError, match="no"):
        run_page(page, tmp_path)
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.slow
def test_the_snippet_for_own_data_of_the_readme_runs(tmp_path):
    _, snippet = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[:2]
    assert snippet.startswith("data = fedpbc.data.from_arrays(X, y")
    given = """
import fedpbc
import numpy as np
rng = np.random.default_rng(0)
X, X_test = rng.standard_normal((600, 4)), rng.standard_normal((50, 4))
y, y_test = (X[:, 0] > 0).astype(int), (X_test[:, 0] > 0).astype(int)
"""
    (tmp_path / "readme.py").write_text(given + snippet.replace("rounds=300", "rounds=4"))
    execute(tmp_path, [sys.executable, "readme.py"])
    assert fedpbc.read_run(tmp_path / "runs" / "mine").final("server_test_accuracy") > 0


@pytest.mark.release
def test_notebooks_run_and_are_what_their_scripts_give():
    pytest.importorskip("nbclient")
    execute(DOCS, [sys.executable, "make_notebooks.py", "--check"])
