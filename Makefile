# Everything runs in .venv, which is made from requirements.lock the first time a target needs it.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# smoke: seconds, for every change; full: the real sizes. Say SCALE=... to choose; each target has its default.
FAST_TESTS := $(wildcard tests/unit tests/property)
REST_TESTS := $(filter-out tests/unit tests/property tests/interop tests/fixtures tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))
BENCHES    := $(sort $(filter-out bench/_%,$(wildcard bench/*.py)))
MYSQL_TESTS := $(wildcard tests/integration/test_sql_*.py) tests/integration/test_store_copy.py tests/integration/bus \
	$(wildcard tests/fault/test_sql_*.py tests/fault/test_bus_*.py)
# Real MariaDB, PostgreSQL, RabbitMQ, Redis and NATS: installed once, as root on Debian; else it says what to install.
SERVERS    := @$(BIN)/python -m tests.support.databases && $(BIN)/python -m tests.support.message_brokers
# Debian's Chromium, for the browser tests of the console; likewise.
BROWSER    := @$(BIN)/python -m tests.support.chromium
# pytest leaves with 5 when a folder holds no test yet.
NONE_IS_FINE := || [ $$? -eq 5 ]

.DEFAULT_GOAL := help
.PHONY: help run test lint bench versus interop mysql spark thorough fault fuzz docs lock clean install
# Without bytecode on disk, each of the hundreds of processes of a run would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

help:  ## print this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(STAMP)  ## run the platform in ./sparrow-data, with a live demo pipeline
	$(BIN)/sparrow demo

test: SCALE ?= smoke
test: $(STAMP)  ## unit and property tests first, then the slower folders at smoke scale
	$(if $(FAST_TESTS),SPARROW_SCALE=$(SCALE) $(BIN)/pytest -q -n 2 $(FAST_TESTS) $(NONE_IS_FINE),@echo "no fast tests yet")
	$(SERVERS)
	$(BROWSER)
	$(if $(REST_TESTS),SPARROW_SCALE=$(SCALE) $(BIN)/pytest -q -n 3 --dist loadgroup $(REST_TESTS) $(NONE_IS_FINE),@echo "no slower tests yet")

lint: $(STAMP)  ## ruff check (with security rules), ruff format --check, mypy --strict, pip-audit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/audit_dependencies.py

bench: SCALE ?= full
bench: $(STAMP)  ## run every bench/*.py in order; results in build/bench/NAME.json
	@mkdir -p build/bench; failed=; \
	for script in $(BENCHES); do \
		name=$$(basename $$script .py); echo "== $$name"; \
		SPARROW_SCALE=$(SCALE) SPARROW_BENCH_RESULT=build/bench/$$name.json $(BIN)/python $$script || failed="$$failed $$name"; \
	done; \
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

versus: SCALE ?= full
versus: $(STAMP)  ## Sparrow and its peers in interleaved rounds; PEERS="rocketmq kafka" chooses; tables, JSON and plots in build/bench
	$(SERVERS)
	SPARROW_SCALE=$(SCALE) $(BIN)/python -m bench.versus $(PEERS)

interop: SCALE ?= full
interop: $(STAMP)  ## official Java and Go clients, RocketMQ's proxy and mqadmin against our broker, our client against theirs (needs Java, Maven, Go)
	$(SERVERS)
	SPARROW_SCALE=$(SCALE) $(BIN)/pytest -q -rs -n 2 --dist loadgroup tests/interop

mysql: SCALE ?= smoke
mysql: $(STAMP)  ## tests of the SQL store and the event bus on MySQL, where `make test` uses MariaDB and the engines may differ
	$(SERVERS)
	@if $(BIN)/python -m tests.support.mysql; then \
		SPARROW_SCALE=$(SCALE) SPARROW_DATABASE=mysql $(BIN)/pytest -q -n 3 --dist loadgroup $(MYSQL_TESTS); \
	else \
		echo "make mysql: left out, for the reason above"; \
	fi

spark: SCALE ?= smoke
spark: $(STAMP)  ## the tests, examples and benchmarks of Spark that `make test` leaves out
	$(SERVERS)
	SPARROW_SCALE=$(SCALE) $(BIN)/pytest -q -m thorough -k spark -n 2 --dist worksteal --timeout=600 \
		tests/fault/test_spark_exactly_once.py tests/integration/test_benchmarks_smoke.py tests/integration/test_versus_smoke.py \
		tests/integration/test_doc_snippets.py tests/integration/test_examples.py tests/spark

thorough: SCALE ?= smoke
thorough: $(STAMP)  ## the other tests that `make test` leaves out: benchmarks, examples, pages of docs, operations of replica sets
	$(SERVERS)
	$(BROWSER)
	SPARROW_SCALE=$(SCALE) $(BIN)/pytest -q -m thorough -k "not spark" -n 3 --dist loadgroup --timeout=600 $(REST_TESTS)

fault: SCALE ?= full
fault: $(STAMP)  ## kill -9, torn tails, full disks, cut connections, at full scale; random examples for every property
	HYPOTHESIS_PROFILE=thorough $(BIN)/pytest -q -n 2 --timeout=1800 $(FAST_TESTS)
	$(SERVERS)
	SPARROW_SCALE=$(SCALE) $(BIN)/pytest -n 2 --dist loadgroup tests/fault $(wildcard tests/integration/test_cluster_*.py)
	SPARROW_SCALE=$(SCALE) $(BIN)/pytest -q -s tests/hostile
	SPARROW_FUZZ=$${SPARROW_FUZZ:-10000000} $(MAKE) fuzz

fuzz: $(STAMP)  ## fuzz the decoders with SPARROW_FUZZ inputs in all (1,000,000), chosen by coverage where atheris can be installed
	@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: atheris==3.0.0 || echo "make fuzz: no atheris for this Python"
	$(BIN)/python -m tests.fuzz

docs: $(STAMP)  ## generate docs/api.md, docs/cli.md and the tables of docs/spark.md and docs/metrics.md from the code
	$(BIN)/python docs/generate_api.py
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python -m sparrow.spark.doc_tables docs/spark.md
	$(BIN)/python -m sparrow.telemetry.doc_tables docs/metrics.md

install: $(STAMP)  ## make .venv and install the locked packages and this project into it

lock: $(VENV)/bin/python  ## resolve requirements.lock again from pyproject.toml (needs the network)
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --upgrade \
		--custom-compile-command "make lock" --extra dev --output-file requirements.lock pyproject.toml

clean:  ## remove what was built or cached; never sparrow-data
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(STAMP): pyproject.toml requirements.lock | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Sparrow needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)."; \
		echo "Install one and name it: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@if ! $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && apt-get install -y -qq python3-venv; \
		fi; \
		$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
			echo "'$(PYTHON)' cannot make virtual environments: its venv or ensurepip module is missing."; \
			echo "On Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; }; \
	fi
	$(PYTHON) -m venv $(VENV)
