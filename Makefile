# Every target sets itself up in .venv; nothing needs root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet
# What was installed: what runs models, or everything that tests, docs and benchmarks need besides.
RUN_STAMP := $(VENV)/.installed-run
STAMP := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help setup tools demo check unit lowest test tests long lint bench faults large docs blocks fuzz hostile scale audit architectures sabotage weights clean

help: ## say what each target does
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	@echo "== installing Potentia and what runs models into $(VENV): one to two minutes, mostly torch; once"
	@$(PIP) --editable '.[run]'
	@touch $@

$(STAMP): pyproject.toml | $(BIN)/python
	@echo "== installing Potentia and the tools of its developers into $(VENV): some minutes, once"
	@$(PIP) --group dev --editable '.[run,postgres,gguf,ray,slurm,trees]'
	@touch $(RUN_STAMP) $@

# Said where the command potentia is not on the PATH yet.
ACTIVATE = @echo "To type potentia yourself:  source $(VENV)/bin/activate"

setup: $(RUN_STAMP) ## install Potentia with what runs models into .venv; the other targets install what they need
	$(ACTIVATE)

tools: $(STAMP) ## install what tests, docs and benchmarks need, too

demo: $(RUN_STAMP) ## run the built-in study: real fine-tuning of tiny models, then the report
	@$(BIN)/potentia demo
	$(ACTIVATE)

lint: $(STAMP) ## style, types and import contracts
	@echo "== ruff" && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "== mypy" && $(BIN)/mypy
	@echo "== import contracts" && $(BIN)/lint-imports && $(BIN)/python tools/house.py --check

# One more than cores: some tests wait for servers, locks and deadlines.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
PYTEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(WORKERS)

# Tests of one module each: no browser, no server, no process of its own, no published data.
UNIT := tests/values tests/facts tests/study tests/formats tests/analysis tests/papers tests/zoo tests/test_api.py tests/test_house.py tests/test_files.py

check: $(STAMP) ## for the inner loop: lint, types, unit tests; two minutes on two quiet cores
	@$(MAKE) --no-print-directory --jobs 2 lint unit

unit: $(STAMP)
	@echo "== unit tests"
	@$(PYTEST) --dist loadfile -m "not slow and not long and not browser and not postgres and not shared" $(UNIT) $(ARGS)

# The lowest versions that pyproject.toml allows, in an environment of their own.
LOWEST := .venv-lowest
LOWEST_EXTRAS := run parquet pandas figures postgres slurm ray track
SAMPLE := tests/test_extras.py tests/show/board/test_board.py tests/show/board/test_request_timeout.py tests/store/test_store.py tests/formats tests/study tests/values tests/tasks/test_metrics.py tests/engine/test_loading.py tests/run/test_tuned.py tests/run/test_slurm.py tests/run/test_ray.py tests/integrations/test_trackers.py tests/e2e/test_demo.py

lowest: ## install the lowest allowed versions into .venv-lowest and run a sample of tests, the demo among them; NEWEST=torch leaves torch as it comes
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/python -m pip install --quiet --upgrade pip
	@$(LOWEST)/bin/python tools/lowest.py $(LOWEST_EXTRAS) --newest $(NEWEST) > $(LOWEST)/constraints.txt
	@$(LOWEST)/bin/python -m pip install --quiet --constraint $(LOWEST)/constraints.txt --editable ".[$$(echo $(LOWEST_EXTRAS) | tr ' ' ,)]" hypothesis jsonschema pytest pytest-timeout pytest-xdist statsmodels
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "not long" $(SAMPLE) $(ARGS)

test: $(STAMP) ## lint and all tests but those of `make long`, beside each other
	@$(MAKE) --no-print-directory --jobs 2 lint tests

tests: $(STAMP)
	@echo "== tests"
	@$(PYTEST) --dist loadfile --no-loadscope-reorder -m "not long" $(ARGS)

long: $(STAMP) ## the tests that take minutes each and seldom break
	@echo "== long tests"
	@$(PYTEST) -m long $(ARGS)

bench: $(STAMP) ## side-by-side measurements on this CPU, each printing a ratio; MODEL=FOLDER ITEMS=arc_easy.parquet adds scoring
	@echo "== store" && $(BIN)/python bench/store.py
	@echo "== analysis" && $(BIN)/python bench/analysis.py
	@echo "== lanes" && $(BIN)/python bench/lanes.py --device cpu
	@echo "== board" && $(BIN)/python bench/board.py
	@if [ -n "$(MODEL)" ]; then echo "== scoring" && $(BIN)/python bench/scoring.py --device cpu --model $(MODEL) --items $(ITEMS) --documents 300; \
	else echo "== scoring: give MODEL=FOLDER ITEMS=FILE to measure it against lm-eval's HFLM"; fi

faults: $(STAMP) ## the long schedule of faults: kills, cuts, clocks that jump, full disks, lost databases (python tests/faults.py --list); ROUNDS=20 of each
	@PYTHONPATH=tests $(BIN)/python tests/faults.py --rounds $(or $(ROUNDS),20)

large: $(STAMP) ## models in 8 and 4 bits (bitsandbytes is installed into .venv), and a study with full tuning in shards
	@$(BIN)/python -m pip install --quiet --editable '.[quantise]'
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/engine/test_quantised.py tests/shards.py

fuzz: $(STAMP) ## mutated inputs for everything that reads files, requests and command lines; INPUTS=100000 SEED=0
	@PYTHONPATH=tools $(BIN)/python -m fuzz --inputs $(or $(INPUTS),5000) --seed $(or $(SEED),0)

hostile: $(STAMP) ## files made to do harm: none runs anything or goes past 2 GB and 30 s
	@PYTHONPATH=tools $(BIN)/python -m fuzz.hostile

scale: $(STAMP) ## how long commands take on stores of 2,000 to 24,000 cells; ARGS="--sizes 200k" for the largest
	@$(BIN)/python bench/scale.py $(ARGS)

audit: $(STAMP) ## look up the installed versions in the database of known holes (needs the network)
	@$(BIN)/python -m pip install --quiet pip-audit
	@$(BIN)/python -m pip freeze --exclude-editable > .audit.txt && $(BIN)/pip-audit --strict --no-deps --disable-pip -r .audit.txt; code=$$?; rm -f .audit.txt; exit $$code

docs: $(STAMP) ## build the documentation site into site/, from docs/ and the code
	@$(BIN)/python tools/docs_site.py

blocks: $(STAMP) ## run every code block of README and docs, also those that take minutes (make test runs the quick ones)
	@$(BIN)/python tools/doc_blocks.py --slow $(PAGES)

architectures: $(STAMP) ## every causal architecture beside HFLM and PEFT, and docs/architectures.md from it; ARGS="llama gpt2" for some
	@PYTHONPATH=tools HF_HUB_OFFLINE=1 $(BIN)/python -m architectures $(ARGS)
	@PYTHONPATH=tools HF_HUB_OFFLINE=1 $(BIN)/python -m architectures.forms --out .architectures.json --page docs/architectures.md $(ARGS)

sabotage: $(STAMP) ## deliberate breaks of the engine, and whether its checks notice them, in float32 and bfloat16
	@PYTHONPATH=tools HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m sabotage $(ARGS)

weights: $(STAMP) ## a study of real models on real benchmarks, to the end, on this CPU; DATA=FOLDER of benchmark splits
	@$(BIN)/python bench/real_weights.py --data $(or $(DATA),../shared/data/benchmarks) $(ARGS)

clean: ## remove what was built here
	rm -rf $(VENV) $(LOWEST) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache potentia-demo
