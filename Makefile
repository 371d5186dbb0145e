# Two commands for a visitor: make demo, make test. The others serve who works on the code.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-interpreters test-builds mutate lint bench-smoke clean

PYTEST := .venv/bin/python -m pytest

# Where nothing keeps bytecode, each of the processes of a test run compiles all it imports again.
unexport PYTHONDONTWRITEBYTECODE

help: ## Show the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: ## Create .venv with the package, find a JDK
	@scripts/setup

demo: setup ## Import 336,776 real flights into a store, query it, and serve a client
	@.venv/bin/rocketstore demo
	@scripts/demo-broker

# Eight processes also on two cores: tests of Spark, or beside the genuine store, mostly wait.
test: setup ## Run the whole test suite
	$(PYTEST) -n 8 --dist loadfile

test-interpreters: setup ## Run a quick suite on every other CPython, 3.11 to 3.14, of this machine
	@scripts/test-interpreters

test-builds: setup ## Build a wheel, and the compiled parts with sanitizers; test both
	@scripts/test-builds

mutate: setup ## Break the product in every way listed; see that tests notice
	.venv/bin/python tests/mutation/tool.py $(CHOSEN)

lint: setup ## Formatting, lint, types, import laws, spelling
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/codespell README.md CHANGELOG.md docs src tests bench

bench-smoke: setup ## A short run of every benchmark scenario
	.venv/bin/python bench/run --smoke
	.venv/bin/python bench/broker --smoke

clean: ## Remove what the commands above made
	rm -rf .venv .demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis tests/interop/*/target
