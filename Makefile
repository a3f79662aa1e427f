# Every target sets up what it needs in .venv: nothing has to be installed by hand but Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TORCH := 2.13.0

.PHONY: demo test servers lint types format interop integrations engines soak bench peers clean

# In an environment of its own, with the package and nothing more.
demo: .demo/.ready
	.demo/bin/python examples/demo.py

test: lint types servers
	scripts/run_tests

# Programs that the tests start as servers.
servers:
	scripts/setup_servers

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Reads what mosaicml-streaming writes, and the other way round, with the real library in .peers/mosaic; and runs the
# tests of its releases 0.5.0 and 0.13.0, Composer and LLM-foundry on penstock. Has lerobot read the robot datasets that penstock writes.
interop: $(READY) .peers/mosaic/.ready .peers/mosaic-0.5.0/.ready .peers/mosaic-0.13.0/.ready .peers/composer/.ready .peers/lerobot/.ready
	$(BIN)/python -m pytest -m interop

# Trains with Accelerate, Lightning, the Hugging Face Trainer, TRL, torchdata and Orbax, all in .peers/integrations. Decodes videos with
# torchcodec in .peers/torchcodec, which needs FFmpeg on this machine. Has the datasets library, in .peers/datasets, read
# what penstock does not.
integrations: .peers/integrations/.ready .peers/torchcodec/.ready .peers/datasets/.ready
	.peers/integrations/bin/python -m pytest -m integrations tests/integrations
	PYTHONPATH=src .peers/torchcodec/bin/python -m pytest -m torchcodec tests/episodes
	PYTHONPATH=src .peers/datasets/bin/python -m pytest -m datasets tests/sources/test_hub_library.py tests/data/test_hf_dataset.py

# Spreads work over a real Ray and a real Spark on this machine, in .peers/engines.
engines: .peers/engines/.ready
	scripts/setup_servers java
	PYTHONPATH=src .peers/engines/bin/python -m pytest -m engines tests/engines

# Slow or large tests: a 4 GiB shard, long fuzzing.
soak: $(READY)
	$(BIN)/python -m pytest -m soak

bench: $(READY) peers
	$(BIN)/python benchmarks/formats.py
	$(BIN)/python benchmarks/stream.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/remote.py
	$(BIN)/python benchmarks/sources.py
	$(BIN)/python benchmarks/in_place.py
	$(BIN)/python benchmarks/order.py --samples 1e6 1e7 1e8 1e10 1e12 --peer
	$(BIN)/python benchmarks/order_mosaic.py --samples 1e7 1e8 --compare
	$(BIN)/python benchmarks/order_quality.py --table

peers: .peers/mosaic/.ready .peers/litdata/.ready .peers/hf/.ready .peers/webdataset/.ready .peers/easydel/.ready

.peers/mosaic-%/.ready: scripts/get_mosaic_tests
	PYTHON=$(PYTHON) scripts/get_mosaic_tests $*

.peers/%/.ready: scripts/make_peer_env
	PYTHON=$(PYTHON) scripts/make_peer_env $*

$(READY): pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

.demo/.ready: pyproject.toml
	$(PYTHON) -m venv .demo
	.demo/bin/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

clean:
	rm -rf $(VENV) .demo .peers .servers .mypy_cache .pytest_cache .ruff_cache .hypothesis demo-data
