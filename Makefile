# Every target is one call; those that need the virtual environment make it first. `make` alone shows what there is.
.DEFAULT_GOAL := help
SHELL := /bin/sh
BIN := .venv/bin
READY := .venv/.headrace-setup
PROJECTS := $(wildcard pyproject.toml */pyproject.toml libs/*/pyproject.toml services/*/pyproject.toml)

.PHONY: help setup demo up down status logs test check protos doctor lock fmt

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

$(READY): requirements.lock deploy/setup.sh $(PROJECTS)
	@sh deploy/setup.sh

setup: $(READY) ## Install everything into .venv (no root, no apt); quick when nothing is to do
	@echo "  set up"

demo: $(READY) ## Start all and stream an agent's run with a tool call
	@$(BIN)/headrace demo

up: $(READY) ## Start PostgreSQL, Redis and the services; print address and key
	@$(BIN)/headrace up

down: $(READY) ## Stop exactly what `up` started
	@$(BIN)/headrace down

status: $(READY) ## Show servers and services
	@$(BIN)/headrace status

logs: $(READY) ## Show the logs, at a terminal follow them (S=service for one, N=lines)
	@$(BIN)/headrace logs $(S) $(if $(N),--lines $(N))

doctor: $(READY) ## Examine this machine and deployment
	@$(BIN)/headrace doctor

test: $(READY) ## Run all tests that this machine can run (STRICT=1: leaving one out is a failure)
	@HEADRACE_STRICT=$(STRICT) sh deploy/test.sh

check: $(READY) ## Format, lint, types, layers, contracts, migrations, sizes
	@sh deploy/check.sh

fmt: $(READY) ## Format the code and repair what ruff can
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix . && $(BIN)/buf format -w

protos: $(READY) ## Generate protos/gen anew
	@PYTHON=$(BIN)/python sh protos/generate.sh

lock: $(READY) ## Write requirements.lock anew (UPGRADE=1: newest versions)
	@PATH=$(BIN):$$PATH $(BIN)/python -m headrace_deploy.lock $(if $(UPGRADE),--upgrade)
