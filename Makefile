# Each target is one word a user would type; all of them work from a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# One thread per library: two pools on the same cores slow every test down.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test native sanitize slow lint asv asv-smoke asv-compare bench performance instructions instructions-record clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e ".[cli,torch]"
	touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e ".[test,bench,cluster,test-aws]"
	touch $@

# From nothing to a pion: three quenched configurations at beta = 6.0, twelve columns on each, correlators and a picture.
DEMO = demo-output
DEMO_CONFIGURATIONS = 000000 000001 000002
demo: $(VENV)/.demo
	mkdir -p $(DEMO)
	test -f $(DEMO)/cfg_000002.ildg || $(BIN)/lqcd generate --lattice 16x8x8x8 --beta 6.0 --seed 1 --thermalization 150 \
	    --separation 15 --configurations 3 --format ildg -o $(DEMO) --resume
	for n in $(DEMO_CONFIGURATIONS); do \
	  test -f $(DEMO)/prop_$$n.h5 || $(BIN)/lqcd propagator $(DEMO)/cfg_$$n.ildg --kappa 0.135 --csw 1.0 --tol 1e-10 \
	    --batch 12 -o $(DEMO)/prop_$$n.h5 --resume || exit 1; \
	done
	$(BIN)/lqcd spectrum $(DEMO)/prop_*.h5 -o $(DEMO)/spectrum.h5 --csv $(DEMO)/pion.csv --plot $(DEMO)/effective_mass.png --force
	@echo "correlators: $(DEMO)/spectrum.h5, $(DEMO)/pion.csv   picture: $(DEMO)/effective_mass.png"

# Files are shared out among JOBS processes, each with one thread.
JOBS ?= 2
test: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist loadfile
	$(MAKE) native

# The plugin in C++, in an environment of its own: where it is installed it is what bind() chooses, and the tests above are
# of the backends that come with the core.
NATIVE = $(VENV)-native
CXX ?= c++
NATIVE_SOURCES = $(wildcard plugins/lqcd-native/cpp/* plugins/lqcd-native/src/lqcd_native/*.py) \
    plugins/lqcd-native/CMakeLists.txt plugins/lqcd-native/pyproject.toml
native:
	@if command -v $(CXX) > /dev/null; then \
	  $(MAKE) $(NATIVE)/.native && $(NATIVE)/bin/python -m pytest -m "not slow" -c plugins/lqcd-native/pyproject.toml \
	      --rootdir plugins/lqcd-native plugins/lqcd-native/tests; \
	else \
	  echo "No C++ compiler ($(CXX)): the plugin lqcd-native is neither built nor tested. Install gcc >= 10 or clang >= 14," \
	      "or name one with CXX=."; \
	fi

$(NATIVE)/.native: $(NATIVE_SOURCES) pyproject.toml constraints.txt
	test -x $(NATIVE)/bin/python || $(PYTHON) -m venv $(NATIVE)
	$(NATIVE)/bin/pip install --quiet -c constraints.txt -e . "plugins/lqcd-native[test]"
	touch $@

# The same kernels under AddressSanitizer and UndefinedBehaviorSanitizer, with a reduced conformance suite.
sanitize: $(NATIVE)/.native
	$(NATIVE)/bin/pip install --quiet nanobind cmake ninja
	PYTHON=$(NATIVE)/bin/python plugins/lqcd-native/sanitize.sh

slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.test
	$(BIN)/pip install --quiet ruff
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

# Benchmarks of the current environment, each once: everything, or what runs in about two minutes. Both fail if one errs.
ASV = ../$(BIN)/asv
ASV_HERE = -E existing:../$(BIN)/python
ASV_RUN = $(ASV) run --quick --show-stderr $(ASV_HERE) --set-commit-hash "$$(git rev-parse HEAD)"
ASV_READY = cd asv_benchmarks && $(ASV) machine --yes > /dev/null && $(ASV) check $(ASV_HERE)
# One thread and one column at 8^4 in single precision, of whatever has such parameters; of rates that follow from a time, the time.
SMOKE = ^(?!.*(16x|double.*x|, 12|, .all|norm2|inner|gamma5|bicgstab|memory|fused|bf16|bfloat16|gbytes|gflops|time_apply.*numpy|numpy.*x|track_iterations|track_instructions|track_elements|track_dma|track_vector|track_tensor|(Clover|Parity|Schur).track))
asv: $(VENV)/.test
	$(ASV_READY) && $(ASV_RUN)

asv-smoke: $(VENV)/.test
	$(ASV_READY) && $(ASV_RUN) -b "$(SMOKE)"

# This commit against another, each installed in an environment of its own, in interleaved rounds: make asv-compare BASE=main~1
# The selection of the smoke; BENCHMARKS=. compares every benchmark, which takes hours.
BASE ?= HEAD~1
BENCHMARKS ?= $(SMOKE)
asv-compare: $(VENV)/.test
	cd asv_benchmarks && $(ASV) machine --yes > /dev/null \
	    && $(ASV) continuous --factor 1.3 --interleave-rounds -a rounds=4 --show-stderr -b '$(BENCHMARKS)' "$(BASE)" HEAD

# The tables of docs/performance.md: on a quiet machine. What was measured already is kept; remove the folder to begin anew.
BENCH = build/bench
BENCH_OPTIONS ?= --lattice 8x8x8x8 --lattice 16x16x16x16 --lattice 32x16x16x16 --batch 1,12
bench: $(VENV)/.test
	mkdir -p $(BENCH)
	$(BIN)/lqcd bench $(BENCH_OPTIONS) -o $(BENCH)/rows.jsonl --resume --plot $(BENCH)/plots

# Static HTML of asv's results and of the sweep's pictures, looked at in a browser without network where one is installed.
PERFORMANCE = build/performance
performance: $(VENV)/.test
	ls asv_benchmarks/.asv/results/*/*existing*.json > /dev/null 2>&1 || $(MAKE) asv-smoke
	cd asv_benchmarks && $(ASV) publish
	mkdir -p $(PERFORMANCE)
	test -f $(BENCH)/rows.jsonl || $(MAKE) bench BENCH_OPTIONS="--lattice 8x4x4x4 --lattice 8x8x8x8 --batch 1,4 --rounds 3 --seconds 0.02"
	$(BIN)/python asv_benchmarks/page.py --asv asv_benchmarks/.asv/html --plots $(BENCH)/plots --rows $(BENCH)/rows.jsonl \
	    --output $(PERFORMANCE)
	$(BIN)/python asv_benchmarks/browser.py $(PERFORMANCE)/index.html --screenshot $(PERFORMANCE)/page.png

# Instructions of the native kernels under callgrind against the record; code 2: they cannot be counted here, and it says why.
instructions: $(NATIVE)/.native
	$(NATIVE)/bin/python asv_benchmarks/instructions.py || [ $$? -eq 2 ]

instructions-record: $(NATIVE)/.native
	$(NATIVE)/bin/python asv_benchmarks/instructions.py --record

clean:
	rm -rf $(VENV) $(NATIVE) $(DEMO) build *.egg-info
