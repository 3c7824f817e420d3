# Each target sets up what it needs: a fresh clone and Python 3.11 or newer are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check format benchmark clean

demo: $(VENV)/.installed  ## evolve four agents on LunarLander over two processes, and print the score
	ACCELERATE_USE_CPU=true $(BIN)/accelerate launch --config_file configs/accelerate/cpu.yaml demos/demo_online_distributed.py

test: $(VENV)/.installed-dev  ## run the tests, a file at a time on each core
	$(BIN)/python -m pytest -q -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder --durations=10

check: $(VENV)/.installed-dev  ## lint and type-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict -p evorl

format: $(VENV)/.installed-dev  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(VENV)/.installed  ## measure the speed, about three minutes
	$(BIN)/python benchmarks/throughput.py

clean:  ## remove the virtual environment
	rm -rf $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,envpool]'
	touch $@
