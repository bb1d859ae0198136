# Every target makes what it needs: a fresh clone and `make demo` is all there is to it.
# PYTHON=/path/to/python3.12 picks the interpreter .venv is made with.

.DEFAULT_GOAL := help
.PHONY: help demo run test check chaos bench docs lock clean deploy-tools
export PYTHON
ARGS ?=
# Test files side by side, each process with servers of its own. They mostly wait: each takes
# a third to two thirds of a core, so 3 is right for 2 cores. Nothing in a short form judges speed (tests/support/sizes.py).
JOBS ?= 3

help: ## Show this list
	@echo "make demo    run the whole life of 500 jobs on an embedded PostgreSQL (about a minute)"
	@echo "make run     start the service; SUPERVISOR_DATABASE_URL names the database, else the embedded one"
	@echo "make test    run the tests on real PostgreSQL servers (15 from the system; 16 and 18 are brought along)"
	@echo "make check   ruff, mypy --strict, import contracts"
	@echo "make chaos   half an hour of faults under load, and the verdict; ARGS='--seconds 60 --seed 7' for less"
	@echo "make bench   all benches against peers on this machine (25 minutes), docs/benchmarks.md and README's figures made of them"
	@echo "make deploy-tools   what tests/deploy checks the shipped files with (kubectl, checkov, hadolint, ...)"
	@echo "make docs    write docs/settings.md and docs/metrics.md anew"
	@echo "make lock    write constraints.txt anew"
	@echo "make clean   remove .venv, those of peers and tools, and caches"
	@echo "More words go in ARGS: make demo ARGS=--json   make test ARGS='-k drain'"

demo:
	@sh scripts/venv.sh run
	@.venv/bin/supervisor demo $(ARGS)

run:
	@sh scripts/venv.sh run
	@exec .venv/bin/supervisor run $(ARGS)

test:
	@sh scripts/venv.sh dev
	@.venv/bin/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

check:
	@sh scripts/venv.sh dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

chaos:
	@sh scripts/venv.sh dev
	@.venv/bin/python -m tests.chaos --seconds 1800 --pause-s 0.4 --per-s 170 $(ARGS)

bench:
	@sh scripts/venv.sh dev
	@.venv/bin/python -m bench all --readme README.md $(ARGS)

# Tools that check the Dockerfile and the manifests, apart from the project's environment: tests/deploy uses them.
deploy-tools: .venv-deploy/.installed

.venv-deploy/.installed: tests/deploy/requirements.txt
	@sh scripts/venv.sh dev
	@rm -rf .venv-deploy && .venv/bin/python -m venv .venv-deploy
	@.venv-deploy/bin/python -m pip install --quiet --no-input --disable-pip-version-check --requirement $<
	@touch $@

docs:
	@sh scripts/venv.sh dev
	@.venv/bin/python -m supervisor.settings
	@.venv/bin/python -m supervisor.metrics

lock:
	@sh scripts/lock.sh

clean:
	rm -rf .venv .venv-deploy .venv-peers build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find supervisor handlers tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
