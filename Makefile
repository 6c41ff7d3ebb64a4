# Two commands do everything on a fresh machine with Python >= 3.11: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo demo-graph test lint types check gate chaos chaos-machines newcomer bench-env bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/foresee demo

demo-graph: $(VENV)/.installed
	$(BIN)/foresee graph demo

# make test COVERAGE=1 also prints the coverage of the source. Options of pytest select tests: make test ONLY='-m real_data'.
test: $(VENV)/.installed
	$(BIN)/pytest -n 3 $(ONLY) $(if $(COVERAGE),--cov --cov-report=term)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

check: lint types test

# For changes that move code and change nothing else: bytes and figures of small runs, counts of plans, the command line,
# the public API, readers of all format versions, names of figures. See docs/testing.md.
gate: $(VENV)/.installed
	$(BIN)/pytest -n 0 tests/gate
	$(BIN)/python tests/gate/run_gate.py

# The long version of what `make test` samples: kills, crashes, schedules, hostile bytes. Prints one JSON object last.
chaos: $(VENV)/.installed
	$(BIN)/python tests/chaos/run.py

# The contract of engines, whole: one machine, a Ray cluster, and Slurm where it is installed; a loop inside Ray Train; a
# run that follows its nodes. Then Ray nodes in network namespaces, each with its own disk, that lose processes, nodes and
# links: needs root; prints one JSON object last.
chaos-machines: $(VENV)/.installed
	FORESEE_ENGINES=long $(BIN)/pytest tests/launch/test_engines.py tests/launch/test_slurm.py \
	    tests/launch/test_ray_train.py tests/launch/test_ray_train_nodes.py tests/launch/test_elastic.py
	$(BIN)/python tests/chaos/machines.py

# What README and docs tell people to type, typed: with the project installed into a new environment.
newcomer: $(VENV)/.installed
	$(BIN)/python tests/newcomer/walk.py --fresh

# What only benchmarks need (peers and referees) lives in an environment of its own. Peers come without dependencies, so
# that torch stays as it is; what they import is named. FuxiCTR 2.3.10 would need ray, which one machine has no use for.
.venv-bench/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[report,cluster]' hypothesis libcachesim lmdb
	.venv-bench/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		fbgemm-gpu-cpu==1.8.0 torchmetrics==1.0.3 tensordict pyre-extensions tqdm iopath psutil
	.venv-bench/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		scikit-learn pandas polars h5py keras-preprocessing
	.venv-bench/bin/pip install --quiet --disable-pip-version-check --no-deps \
		torchrec==1.8.0 deepctr-torch==0.3.0 fuxictr==2.3.9 torch_geometric==2.8.1 dgl==1.1.3
	.venv-bench/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		networkx requests xxhash aiohttp fsspec pyparsing
	.venv-bench/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		pytorch-lightning accelerate datasets
	.venv-bench/bin/pip install --quiet --disable-pip-version-check --no-deps \
		torchbiggraph==1.0.0 pykeen==1.11.1 torch-ppr
	.venv-bench/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt 'setuptools<81' \
		attrs class_resolver click_default_group dataclasses-json docdata more_click more_itertools optuna pystow \
		tabulate torch_max_mem
	touch $@

bench-env: .venv-bench/.installed

bench: $(VENV)/.installed bench-env
	for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV) .venv-bench build demo demo-graph .mypy_cache .ruff_cache .pytest_cache .hypothesis
