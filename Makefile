# The build itself is CMake's (CMakeLists.txt, CMakePresets.json); these are its usual ways in.
.DEFAULT_GOAL := help
.PHONY: help build debug asan tsan test check test-op demo bench gpu-check gpu-bench gpu-compare precision-report references gpu-pack zoo accuracy thorough kills cubins cuda-full nccl-full docs docs-run fuzz fuzz-operators fuzz-differential faults format lint install clean

PREFIX ?= /usr/local

define cmake_build
	@scripts/setup --quiet build
	cmake --preset $(1) --log-level=WARNING
	cmake --build --preset $(1)
endef

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

build: ## build/gradc and build/lib/libgradc_rt.a, optimized
	$(call cmake_build,release)

debug: ## the same in build-debug/, with asserts and the verifier after every pass
	$(call cmake_build,debug)

asan: ## the same in build-asan/, with the address and undefined behaviour sanitizers
	$(call cmake_build,asan)

tsan: ## the same in build-tsan/, with the thread sanitizer
	$(call cmake_build,tsan)

test: ## all tests; ends with `N passed, N failed, N skipped`
	@scripts/setup --quiet test
	$(MAKE) build asan tsan
	scripts/test

check: build ## tests of every room in two to three minutes; tests/README.md says what to run after touching which
	@scripts/setup --quiet test
	scripts/test --check

test-op: ## what the tests ask of one op, in seconds: make test-op OP=cube
	scripts/test-op $(OP)

demo: build ## compiles and trains a small GPT-2, results in demo/
	scripts/demo

bench: build ## gradc beside PyTorch, step by step; BENCH="--models mlp --rounds 3" for less
	@scripts/setup --quiet bench
	bench/.venv/bin/python bench/compare.py $(BENCH)

# On a machine with a GPU; each takes minutes and writes a JSON under bench/results. GPU="--models gpt2_124m" for less.
PYTHON ?= python3

gpu-check: ## is the GPU right: device suite, kernels, curves, three equal runs, compute-sanitizer
	$(PYTHON) bench/gpu/check.py $(GPU)

gpu-bench: ## how fast is the GPU: tokens a second, time by kernel, memory, launch gaps
	$(PYTHON) bench/gpu/bench.py $(GPU)

gpu-compare: ## PyTorch beside gradc on the GPU, in one run
	$(PYTHON) bench/gpu/compare.py $(GPU)

precision-report: build ## trains by every recipe of 16 and 8 bits; writes bench/results/recipes.json, docs/precision-curves.svg
	test -x bench/.plot/bin/python || python3 -m venv bench/.plot
	bench/.plot/bin/pip install -q -r bench/plot-requirements.txt
	bench/.plot/bin/python bench/precision.py $(REPORT)

references: build ## makes tests/references anew, by PyTorch and others in a virtual environment of its own
	test -x tests/references/.venv/bin/python || python3 -m venv tests/references/.venv
	tests/references/.venv/bin/pip install -q -r bench/requirements.txt -r tests/references/requirements.txt
	tests/references/.venv/bin/python tests/references/autocast.py $(or $(MODELS),../shared/models)
	tests/references/.venv/bin/python tests/references/dynamic_map.py
	tests/references/.venv/bin/python tests/references/four_bit.py
	tests/references/.venv/bin/python tests/references/metrics.py
	tests/references/.venv/bin/python tests/references/operators.py
	tests/references/.venv/bin/python tests/references/peft_curves.py $(or $(MODELS),../shared/models)
	tests/references/.venv/bin/python tests/references/peft_curves.py --check build/gradc $(or $(MODELS),../shared/models)

gpu-pack: ## makes gpu/, which these need on a machine that cannot build
	scripts/gpu-pack

zoo: build ## models of nine libraries, exported and trained there and here: docs/models.md; GBs, hours: ZOO="timm --models 'vit*'" for less
	@scripts/setup --quiet test
	tests/zoo/run $(ZOO)

accuracy: build ## every f32 through every scalar function, ten minutes
	cmake --build --preset release --target accuracy
	build/tests/accuracy

thorough: build ## the tests with their longest cases, an hour
	@scripts/setup --quiet test
	GRADC_THOROUGH=1 scripts/test

kills: build ## ends a rank of four while they save a checkpoint, 100 times, eight minutes; KILLS=1000 for more
	@scripts/setup --quiet test
	GRADC_KILLS=$(or $(KILLS),100) .venv/bin/pytest -q -p no:cacheprovider tests/dist/test_shard_checkpoints.py -k killed_while_saving

cubins: build ## all kernels of the test and bench models for the GPUs that tests leave out, four minutes
	@scripts/setup --quiet test
	GRADC_THOROUGH=1 GRADC_ARCHITECTURE=sm_80 .venv/bin/pytest -q -p no:cacheprovider tests/codegen/test_cubins.py
	GRADC_THOROUGH=1 GRADC_ARCHITECTURE=sm_100a .venv/bin/pytest -q -p no:cacheprovider tests/codegen/test_cubins.py

cuda-full: build ## all steps of all reference models on the pretended GPU, hours
	@scripts/setup --quiet test
	GRADC_CUDA_FULL=1 .venv/bin/pytest -q -p no:cacheprovider tests/cuda/test_curves.py

nccl-full: build ## the models of tests/dist on four pretended GPUs, over NCCL and over the host, half an hour
	@scripts/setup --quiet test
	GRADC_NCCL_FULL=1 .venv/bin/pytest -q -p no:cacheprovider tests/cuda/test_nccl.py

docs: build ## writes docs/ops.md from the rows of ops, docs/deepspeed.md from those of its keys, the man page from the rows of options, docs/recipes.md from dumps, docs/coverage.md from rows and tests; tables of passes, stages and options in pages from `gradc passes` and --help; the picture of the rooms from the includes
	cmake --build --preset release --target ops_page executable_help deepspeed_page
	build/tests/ops_page > docs/ops.md
	build/tests/deepspeed_page > docs/deepspeed.md
	scripts/man-page build > docs/gradc.1
	scripts/recipes-page build > docs/recipes.md
	.venv/bin/python scripts/coverage-page build > docs/coverage.md
	scripts/page-tables build
	scripts/rooms-picture > docs/pictures/rooms.svg

docs-run: build ## runs the command lines of README.md, docs/ and examples/, and compares what they print; a minute
	@scripts/setup --quiet test
	scripts/docs-run

fuzz: ## looks for inputs that crash or miscompile
	@scripts/setup --quiet test
	tests/fuzz/run

fuzz-operators: ## changes of ONNX's backend models for an hour; FUZZ=60 for seconds
	@scripts/setup --quiet test
	tests/fuzz/run $(or $(FUZZ),3600) operators

fuzz-differential: build ## mutated models in gradc and in onnxruntime; FUZZ="--minutes 30" for less
	@scripts/setup --quiet test
	.venv/bin/python tests/differential/fuzz.py $(or $(FUZZ),--compared 10000)

faults: asan ## one failing allocation or call after the other, up to two hours; FAULTS="--only train" for less
	@scripts/setup --quiet test
	.venv/bin/python tests/faults/inject.py $(FAULTS)

format: ## formats the C sources in place
	git ls-files -co --exclude-standard '*.c' '*.h' | xargs clang-format -i

lint: ## complains about format and about includes across folders
	git ls-files -co --exclude-standard '*.c' '*.h' | xargs clang-format --dry-run -Werror
	scripts/check-folders
	scripts/check-ops
	scripts/check-machines

install: build ## installs under PREFIX (/usr/local)
	cmake --install build --prefix $(PREFIX)

clean: ## removes what was built
	rm -rf build build-debug build-asan build-tsan build-fuzz build-fuzz-thread demo
