# Condense: `make run` and `make test` are all that a newcomer needs. The work is in scripts/ and CMake.
PREFIX ?= /usr/local
# Another llama.cpp checkout than the pinned one: make run LLAMA_CPP_DIR=/path (built in its own tree).
LLAMA_CPP_DIR ?=
# More arguments for the main job, or for the benchmark: make run ARGS="--policy mean:blocks=8 -n 64"
ARGS ?=

# Debian's own Python has the NumPy that the set-up installs.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)

ifeq ($(LLAMA_CPP_DIR),)
RELEASE := build/release
CMAKE_ARGS :=
else
RELEASE := build/other/release
CMAKE_ARGS := -B $(RELEASE) -DCONDENSE_LLAMA_CPP_DIR=$(abspath $(LLAMA_CPP_DIR))
endif
export LLAMA_CPP_DIR PYTHON
# Checkouts at different paths share their objects in ccache.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
MAKEFLAGS += --no-print-directory

.PHONY: help run test check-exact install bench lint format clean distclean build
help:
	@echo 'make run        set up, build, compare dense and sparse decoding on real weights; build/report.html'
	@echo 'make test       set up, build, run every test (CONDENSE_SKIP_ASAN=1: without the sanitizers,'
	@echo '               CONDENSE_SKIP_CROSS=1: without the ARM build)'
	@echo 'make check-exact exact decoding against dense: every draft source and length, half an hour'
	@echo 'make install    PREFIX=/usr/local: the command, the plug-in, the header'
	@echo 'make bench      the benchmarks; build/bench.jsonl'
	@echo 'make lint       clang-format and clang-tidy; make format: format in place'
	@echo 'make clean      remove what was built of Condense; make distclean: all of build/'
	@echo 'Variables: ARGS="…" (more arguments for run and bench), LLAMA_CPP_DIR=DIR (another llama.cpp source),'
	@echo '           CC, CXX (compilers)'

run:
	@scripts/setup.sh run
	@$(MAKE) build TARGETS='--target condense ggml-condense'
	@rm -f build/records.jsonl
	$(RELEASE)/bin/condense compare --report build/report.html --records build/records.jsonl $(ARGS)
	@echo 'report: $(CURDIR)/build/report.html'

test:
	@scripts/setup.sh test
	@$(MAKE) build CONFIGURE='-DCONDENSE_BUILD_TESTS=ON'
	@scripts/test.sh $(RELEASE)

check-exact:
	@scripts/setup.sh run
	@$(MAKE) build TARGETS='--target condense ggml-condense'
	@$(PYTHON) scripts/check_exact.py $(RELEASE) $(ARGS)

install:
	@scripts/setup.sh install
	@$(MAKE) build TARGETS='--target condense ggml-condense'
	@cmake --install $(RELEASE) --prefix '$(abspath $(PREFIX))'

bench:
	@scripts/setup.sh bench
	@$(MAKE) build CONFIGURE='-DCONDENSE_BUILD_BENCH=ON'
	@$(PYTHON) scripts/bench.py $(RELEASE) $(if $(LLAMA_CPP_DIR),--llama-bench $(RELEASE)/llama/bin/llama-bench) $(ARGS)

lint:
	@scripts/setup.sh lint
	@cmake --preset release $(CMAKE_ARGS) -DCONDENSE_BUILD_TESTS=ON -DCONDENSE_BUILD_BENCH=ON >build/release.configure.log 2>&1 || { cat build/release.configure.log; exit 1; }
	@scripts/lint.sh $(RELEASE)

format:
	@scripts/lint.sh --fix

clean:
	rm -rf build/release build/dev build/asan build/aarch64 build/other build/lint build/log build/*.configure.log build/report.html build/records.jsonl build/bench.jsonl build/fidelity

distclean:
	rm -rf build

# Quiet unless it fails: CMake's own report lies in build/release.configure.log.
build:
	@cmake --preset release $(CMAKE_ARGS) $(CONFIGURE) >build/release.configure.log 2>&1 || { cat build/release.configure.log; exit 1; }
	@cmake --build $(RELEASE) $(TARGETS)
