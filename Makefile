# `make` lists the targets. On a bare machine with Python (3.11 or newer), git and make, two of them do everything:
# `make build` and `make test`. Another interpreter: make build PYTHON=python3.13

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
SPEC ?= specs/deepseek.yaml
SIM_SPECS ?= specs/*.yaml tests/gpu/specs/*.yaml tests/sim/specs/*.yaml
SIM_OPTIONS ?= --schedule full
BIN := $(VENV)/bin
# Python compiles what it imports; all of torch and Triton would take longer than to unpack them.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Environments. The stamp files make a second `make build` install nothing.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mlagen needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "\n  name another: make build PYTHON=python3.13")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --constraint constraints.txt --editable .
	@touch $@

# torch goes first and alone: its CUDA builds pin an NVRTC and a Triton of their own, and the pinned ones must win.
$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.installed

.PHONY: build
build: $(VENV)/.installed ## make .venv, install mlagen, build specs/deepseek.yaml, run one of its kernels in the simulator
	$(BIN)/mlagen build $(SPEC)
	$(BIN)/mlagen verify $(SPEC) --backend sim --first

.PHONY: test
test: $(VENV)/.installed-dev ## make the environment for tests (adds torch) and run the whole suite
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

.PHONY: check
check: lint types specs-valid kernels ## lint, types, generated/ against its spec, machine code against its plan (CI, after the tests)

.PHONY: lint
lint: $(VENV)/.installed-dev ## ruff, codespell, clang-format on generated/; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs mlagen templates specs tests
	$(BIN)/clang-format --dry-run --Werror generated/*/*/*.cu

.PHONY: types
types: $(VENV)/.installed-dev ## mypy --strict
	$(BIN)/mypy

.PHONY: specs-valid
specs-valid: $(VENV)/.installed-dev ## specs/ against the JSON Schema
	$(BIN)/mlagen schema | $(BIN)/check-jsonschema --schemafile - specs/*.yaml

.PHONY: kernels
kernels: $(VENV)/.installed-dev ## generated/ against its spec, machine code against its plan
	$(BIN)/mlagen build $(SPEC) --check
	$(BIN)/mlagen build $(SPEC) --lint strict

.PHONY: format
format: $(VENV)/.installed-dev ## rewrite Python files as ruff wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: docs
docs: $(VENV)/.installed ## renew what documents show of the code: the schema, docs/spec.md, the picture of a schedule
	$(BIN)/mlagen schema > specs/mlagen.schema.json
	$(BIN)/mlagen schema --markdown > docs/spec.md
	$(BIN)/python -m benchmarks.timeline > docs/kernels/prefill_sm100.svg

# Interrupt it at will: build/sim-full.jsonl keeps what has passed, until code or templates change. A part of it:
# make sim-full SIM_SPECS=tests/sim/specs/pairs_192x128.yaml SIM_OPTIONS='--schedule lazy --schedule pct:1 --problem walk'
.PHONY: sim-full
sim-full: $(VENV)/.installed ## every kernel of every spec, tests' too, in the simulator: all problems, lazy and eight seeds (hours)
	status=0; for spec in $(SIM_SPECS); do \
	  $(BIN)/mlagen verify $$spec --backend sim $(SIM_OPTIONS) --jobs $(JOBS) --log build/sim-full.jsonl || status=1; \
	done; exit $$status

# Interrupt it at will: build/mutants.jsonl keeps what has been run, until code or templates change.
.PHONY: mutants
mutants: $(VENV)/.installed-dev ## every fault of tests/mutation at every place of the kernels that cover the templates (an hour)
	$(BIN)/python -m tests.mutation --jobs $(JOBS)

.PHONY: test-gpu
test-gpu: $(VENV)/.installed-dev ## the tests that need an NVIDIA GPU
	$(BIN)/python -m pytest tests/gpu -m gpu

.PHONY: foreign
foreign: $(VENV)/.installed-dev ## kernels that Triton compiles, in the simulator (part of `make test`; Linux on x86-64)
	$(BIN)/python -m pytest tests/foreign

.PHONY: bench
bench: $(VENV)/.installed-dev ## the project's own figures, beside torch's attention, with their goals; needs a GPU
	$(BIN)/python -m benchmarks.prefill

.PHONY: gpu-report
gpu-report: $(VENV)/.installed-dev ## GPU tests, checkers and timings in one call, with a report in benchmarks/results
	$(BIN)/python -m benchmarks.device_run

.PHONY: clean
clean: ## remove environments, caches and build output; generated/ stays
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
