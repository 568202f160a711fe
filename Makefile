# Everything runs in .venv, which is made on first use with the versions in constraints.txt: for the demo with what the
# simulator needs, for all else with everything.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11) and "fedpbc needs Python 3.11 or later; try: make PYTHON=python3.11")
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo deploy-demo test test-release test-newest-flwr mutants torch transformers lint docs notebooks results study comparison bench bench-short clean

# Fig. 2 and Fig. 3 of the paper, with fewer seeds, rows and rounds than `fedpbc run counterexample` and `synthetic`.
demo: $(VENV)/.simulation
	$(BIN)/fedpbc run counterexample --seeds 0,1 --set eval_every=10 --out runs/demo/fig2 --resume
	$(BIN)/fedpbc run synthetic --set rounds=400 --seeds 0 --out runs/demo/fig3 --resume
	@echo "Figures: runs/demo/*/figure.png. FedAvg ahead of FedPBC in the second table is no mistake:"
	@echo "docs/results.md says under which links FedPBC helps, and under which it loses."

# A Flower deployment on this machine; one SuperNode dies in mid-run and comes back (about three minutes).
deploy-demo: $(VENV)/.ready
	$(BIN)/python examples/deploy_demo.py

# Most of it is XLA's compiler, which takes a third less with its older emitters; before a release tests have those of users.
# Three at a time on two cores, as servers and clients of the Flower tests wait for each other.
QUICK = XLA_FLAGS="--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1"
test: $(VENV)/.ready
	$(QUICK) $(BIN)/python -m pytest -n 3

# Before a release: the tests that take long, some of them minutes, and what is equal to the bit, as users' programs are compiled.
BITS = tests/test_engine.py tests/test_sharded.py tests/test_side_by_side.py tests/test_network_steps.py tests/test_active.py tests/test_oracle.py
test-release: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2 -m release
	$(BIN)/python -m pytest -n 2 $(BITS)

# The Flower tests against the newest flwr of the index, whatever pyproject.toml pins, in an environment of its own. It may
# fail: its last line says the version and the verdict. FLWR='--nightly' or '--version 1.43.0' for another.
test-newest-flwr:
	$(PYTHON) -c '$(NEW_ENOUGH)'
	$(PYTHON) tests/newest_flwr.py $(FLWR)

# Breaks the package in one place after another, in a copy, and shows that a test notices (half an hour on two cores).
mutants: .venv/.ready
	$(BIN)/python tests/run_mutants.py -j 2

# PyTorch (CPU is enough) for the tests of examples/pytorch_mnist, which are skipped without it.
torch: $(VENV)/.ready
	$(PIP) torch==2.13.0

# Hugging Face, for the release tests of its quickstart, which say that it is missing where it is.
transformers: torch
	$(PIP) transformers==5.24.0

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a site, site/index.html. Not --quiet, under which mkdocs counts no warning and is not strict.
docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Runs docs/notebooks/*.py and writes them as notebooks with their outputs.
notebooks: $(VENV)/.ready
	$(BIN)/python docs/make_notebooks.py

# Regenerates docs/results.md and its figures (about an hour on two idle cores, by estimate).
results: $(VENV)/.ready
	$(BIN)/python docs/make_results.py

# Runs the study of docs/comparison.md, or goes on with it, and writes docs/data/; --plan says how long that takes.
study: $(VENV)/.ready
	$(BIN)/python docs/make_study.py run

# Writes docs/comparison.md and its pictures from docs/data/.
comparison: $(VENV)/.ready
	$(BIN)/python docs/make_study.py page

# Has its own environment, with PyTorch; makes one more for each of the other frameworks. Rewrites docs/performance.md.
bench: .venv-bench/.ready
	.venv-bench/bin/python benchmarks/bench.py --out benchmarks/results
	.venv-bench/bin/python docs/make_performance.py

# Before a release, under five minutes: ratios beside benchmarks/expected.toml.
bench-short: .venv-bench/.ready
	.venv-bench/bin/python benchmarks/bench.py --short --repetitions 3

clean:
	rm -rf $(VENV) .venv-bench .venv-bench-* site

.venv-bench/.ready: pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[audit,flower,simulation]'
	touch $@

$(VENV)/.simulation: pyproject.toml constraints.txt
	$(PYTHON) -c '$(NEW_ENOUGH)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[simulation]'
	touch $@

# Has all that the demo needs, too.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c '$(NEW_ENOUGH)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.simulation
