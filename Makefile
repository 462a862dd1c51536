# make train       set up .venv, then train DQN on CartPole-v1 with two actors (ARGS= adds options)
# make test        set up .venv with the developer tools, then all gates and tests
# make quick       the tests that take a minute: no processes, no faults, no learning
# make check       the gates that take seconds: format, lint, types, imports, documentation
# make chaos       inject faults into small runs, where no test does, and check the promised behaviour
# make nightly     what takes hours: all tests at full size, other arithmetic, all faults at full size
# make oldest      all tests with the oldest torch that pyproject.toml accepts, in build/oldest
# make docs        build the documentation site into build/site; a broken link is an error
# make bench       measure sampling throughput (ARGS= adds options)
# make clean       remove caches and build outputs; remove .venv by hand to reinstall
#
# Needs GNU make 3.81 or newer. PYTHON=... chooses the interpreter. CI runs `test` and `chaos`.

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
TOO_OLD := asyncrl needs Python 3.11 or newer, and found none on PATH; name one: make PYTHON=/path/to/python3

ifndef PYTHON
PYTHON := $(shell for p in python3.13 python3.12 python3.11 python3; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo $$p; break; fi; done)
endif

.PHONY: train test tests quick check chaos chaos-actors chaos-machines nightly tests-full chaos-full arithmetic oldest docs bench clean

train: $(VENV)/installed
	$(BIN)/asyncrl train dqn --env CartPole-v1 --actors 2 --stop-at-return 475 $(ARGS)

test: $(VENV)/installed-dev
	$(MAKE) --jobs 2 tests check

# More workers than cores, since tests often wait for processes. `ARGS="-n 0 --pdb"` opens a
# debugger at the first failure.
tests: $(VENV)/installed-dev
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal --durations 10 $(ARGS)

# The ignored folders have no quick tests, and collecting them takes a third of the time of all others.
# The ignored files are of pages, of the wheel, and of games, which take long to begin.
# Each worker collects for 6 s, and these tests wait for nothing: no more workers than cores.
NO_QUICK_TESTS := agents export faults integration run benchmarks envs/test_atari.py \
	test_docs.py test_docker.py test_package.py test_words.py
quick: $(VENV)/installed-dev
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --durations 10 \
		$(NO_QUICK_TESTS:%=--ignore=tests/%) \
		-m "not slow and not processes and not learning and not fault" $(ARGS)

# The vector width of the processor changes how sums are rounded; learning must not depend on it.
NARROWER = import torch; print("avx2" if "AVX512" in torch.backends.cpu.get_cpu_capability() else "default")
arithmetic: $(VENV)/installed-dev
	ATEN_CPU_CAPABILITY=$$($(BIN)/python -c '$(NARROWER)') MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41 \
		$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --durations 10 \
		-m "learning and not slow and not processes" $(ARGS)

# Two entries at a time, since most wait.
CHAOS := $(BIN)/python -m benchmarks.chaos --results build/chaos
chaos:
	$(MAKE) --jobs 2 chaos-actors chaos-machines
chaos-actors: $(VENV)/installed-dev
	$(CHAOS) --only kill_storm orphans full_disk ranks $(ARGS)
chaos-machines: $(VENV)/installed-dev
	$(CHAOS) --only nonsense partition hosts $(ARGS)

# What torch can compile and capture changes with its version. Other packages are the newest.
OLDEST_TORCH = $(shell sed -n 's/.*"torch>=\(.*\)",/\1/p' pyproject.toml)
oldest:
	$(PYTHON) -m venv build/oldest
	build/oldest/bin/python -m pip install --disable-pip-version-check \
		--editable ".[dev]" "torch==$(OLDEST_TORCH).*"
	build/oldest/bin/python -m pytest --numprocesses 2 --dist worksteal --durations 10 $(ARGS)

# Continues with everything after a failure, and fails at the end.
nightly: $(VENV)/installed-dev
	$(MAKE) --keep-going tests-full arithmetic oldest chaos-full

tests-full: $(VENV)/installed-dev
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --durations 30 --timeout 3600 \
		-m "slow or not slow" --scale full $(ARGS)

chaos-full: $(VENV)/installed-dev
	$(CHAOS) --size full --without soak $(ARGS)
	$(CHAOS) --size small --only soak $(ARGS)

check: $(VENV)/installed-dev docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Pages are committed, so this needs nothing of the package: `python -m docs.generate` writes those
# that come from code and results, and a test compares them.
docs: $(VENV)/installed-docs
	$(BIN)/zensical build --strict

bench: $(VENV)/installed
	$(BIN)/asyncrl bench sample $(ARGS)

clean:
	rm -rf .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find asyncrl benchmarks docs examples tests -name __pycache__ -type d -prune -exec rm -rf {} +

# `make` installs again only if the constraints or pyproject.toml are newer than these stamp files.
$(VENV)/installed: $(VENV)/bin/python constraints.txt pyproject.toml
	$(PIP_INSTALL) --editable '.[tensorboard]'
	touch $@

$(VENV)/installed-dev: $(VENV)/bin/python constraints.txt pyproject.toml
	$(PIP_INSTALL) --editable '.[dev]'
	touch $@ $(VENV)/installed $(VENV)/installed-docs

$(VENV)/installed-docs: $(VENV)/bin/python constraints.txt
	$(PIP_INSTALL) zensical
	touch $@

$(VENV)/bin/python:
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(TOO_OLD)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
