# Each target is one word a user would type; all of them work from a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# One thread per library: two pools on the same cores slow every test down.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test native sanitize slow lint asv clean

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

test: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow"
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

# Quick benchmarks of the current environment.
asv: $(VENV)/.test
	cd asv_benchmarks && ../$(BIN)/asv machine --yes > /dev/null && ../$(BIN)/asv check -E existing:../$(BIN)/python \
	    && ../$(BIN)/asv run --quick --show-stderr -E existing:../$(BIN)/python --set-commit-hash "$$(git rev-parse HEAD)"

clean:
	rm -rf $(VENV) $(NATIVE) $(DEMO) build *.egg-info
