# Two commands do all the set-up on a fresh machine with Python 3.11 and make: `make run`, `make test`.
PYTHON ?= python3
BIN := .venv/bin
SECONDS ?= 300
SEED ?= 0
SEEDS ?= 100
CUTS ?= 1000
COUNT ?= 300
ATTACK_SECONDS ?= 10
BLAST_SECONDS ?= 6
# The newest Python that runs here and is newer than 3.11, on the path or installed by pyenv.
NEWEST ?= $(shell for minor in 19 18 17 16 15 14 13 12; do \
	for one in python3.$$minor $(HOME)/.pyenv/versions/3.$$minor.*/bin/python3; do \
	$$one -c "" 2>/dev/null && echo $$one && exit; done; done)

# Tests start hundreds of processes: each would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test newest lint screenshots bench crash crash-workers crash-service crash-postgres crash-power fuzz attack blast simulate compare mutate docs clean

run: .venv/runnable ## the service on http://127.0.0.1:3100, with a small queue being worked
	$(BIN)/tenure serve --demo

test: lint .venv/browser ## all checks and tests
	$(BIN)/pytest -n 4 --dist worksteal # many tests wait for the disk

newest: ## the unit, conformance (SQLite) and worker tests on the newest Python of this machine
	@test -n "$(NEWEST)" || echo "There is no newer Python than $(PYTHON) here."
	test -z "$(NEWEST)" || $(MAKE) --no-print-directory BIN=.venv-newest/bin PYTHON=$(NEWEST) .venv-newest/tested

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

screenshots: .venv/installed .venv/browser ## pictures of the dashboard, into docs/images
	$(BIN)/python -m tests.browser.screenshots

bench: .venv/installed ## the figures of the README, measured here
	$(BIN)/python -m bench

crash: .venv/installed ## kill processes for SECONDS=300 with SEED=0
	$(BIN)/python -m tests.crash.kill --seconds $(SECONDS) --seed $(SEED)

crash-workers: .venv/installed ## the same with workers that run tasks
	$(BIN)/python -m tests.crash.worker_kill --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/python -m tests.crash.steps_kill --seconds $(SECONDS) --seed $(SEED)

crash-service: .venv/installed ## a service with 200 callers, killed five times a minute
	$(BIN)/python -m tests.crash.service_kill --seconds $(SECONDS) --seed $(SEED)

crash-postgres: .venv/installed ## kill a PostgreSQL server under services and workers, then primaries of standbys
	$(BIN)/python -m tests.crash.outage --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/python -m tests.crash.failover --seconds $(SECONDS)

crash-power: .venv/installed ## cut the power under SQLite at CUTS=1000 places; needs a C compiler
	$(BIN)/python -m tests.crash.power --cuts $(CUTS) --seed $(SEED)

fuzz: .venv/installed ## send the service what Schemathesis makes up, for SECONDS=300 from SEED=0
	$(BIN)/python -m tests.server.fuzz --seconds $(SECONDS) --seed $(SEED)

attack: .venv/installed ## abusive clients beside an honest one, on SQLite and PostgreSQL, each for ATTACK_SECONDS=10
	$(BIN)/python -m tests.server.attacks --seconds $(ATTACK_SECONDS)

blast: .venv/installed ## one part after the other fails for BLAST_SECONDS=6: a table of what others keep of their promises
	$(BIN)/python -m tests.blast --seconds $(BLAST_SECONDS)

simulate: .venv/installed ## all tests on a simulated FoundationDB and over HTTP; then SEEDS=100 runs of servers
	TENURE_SIMULATE=all $(BIN)/pytest -n 2 tests/conformance tests/server tests/simulation -k "fdb or remote or Follows or Same"
	$(BIN)/python -m tests.simulation.servers.run --seeds $(SEEDS) --first $(SEED)

mutate: .venv/installed ## change COUNT=300 decisions, one at a time, first those SINCE a commit, and list those that no test notices
	$(BIN)/python -m tests.mutation --seed $(SEED) --count $(COUNT) $(if $(SINCE),--since $(SINCE))

compare: .venv/installed ## each engine beside the model for SECONDS=300, from SEED=0
	$(BIN)/python -m tests.simulation.compare --seconds $(SECONDS) --seed $(SEED)

docs: .venv/installed ## write the pages that are made from the code
	$(BIN)/python -m docs.generate

.venv/runnable: pyproject.toml # what `make run` needs, and no more
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[server,remote]'
	touch $@

.venv/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ .venv/runnable

.venv/browser: .venv/installed tests/browser/install.py # Chromium and axe-core
	$(BIN)/python -m tests.browser.install
	touch $@

.venv-newest/tested: .venv-newest/installed
	$(BIN)/pytest -n 4 --dist worksteal tests/unit tests/workers
	$(BIN)/pytest -n 4 --dist worksteal tests/conformance -k sqlite

.venv-newest/installed: pyproject.toml
	$(PYTHON) -m venv .venv-newest
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-newest .mypy_cache .ruff_cache .pytest_cache .hypothesis
