#!/bin/bash
# Runs every test: first the fast ones under AddressSanitizer and UndefinedBehaviorSanitizer (unless
# CONDENSE_SKIP_ASAN=1), then those of kernels, cache, policies and attention compiled for 64-bit ARM, under qemu-user
# (unless CONDENSE_SKIP_CROSS=1, or on such a machine), then all of them in the release build. Fast tests run on every
# core; those with models and hosts one at a time (RUN_SERIAL): two OpenMP programs that spin on the same cores crawl. The
# last line counts all.
# test.sh RELEASE_DIR: the build tree of the main run.
set -u
cd "$(dirname "$0")/.."
release=${1:-build/release}
status=0
results=()

run() { # name, build tree, further arguments of ctest
  local name=$1 tree=$2
  shift 2
  echo "== $name"
  mkdir -p build/log
  local xml=$PWD/build/log/$name.xml
  rm -f "$xml"
  ctest --test-dir "$tree" --output-on-failure --no-tests=error --output-junit "$xml" -j"$(nproc)" "$@" || status=1
  results+=("$xml")
}

failed_build() { # name, configure log
  echo "the $1 build failed ($2, and above)" >&2
  rm -f "build/log/$1.xml"
  results+=("build/log/$1.xml")
  status=1
}

skip() { # name, reason: counted as one skipped test
  echo "== $1: skipped: $2"
  mkdir -p build/log
  echo "<testsuite><testcase name=\"$1: $2\" status=\"disabled\"/></testsuite>" >"build/log/$1.xml"
  results+=("build/log/$1.xml")
}

asan=build/asan
against=()
if [ -n "${LLAMA_CPP_DIR:-}" ]; then # the host that the release tree has built already
  asan=build/other/asan
  against=(-B "$asan" -DCONDENSE_LLAMA_CPP_DIR="$(realpath "$LLAMA_CPP_DIR")" -DCONDENSE_LLAMA_BUILD_DIR="$PWD/$release/llama")
fi
if [ "${CONDENSE_SKIP_ASAN:-0}" != 1 ]; then
  if cmake --preset asan "${against[@]}" >build/asan.configure.log 2>&1 && cmake --build "$asan"; then
    export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1}
    export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
    run asan "$asan" -L '^fast$'
  else
    failed_build asan build/asan.configure.log
  fi
fi

if [ "$(uname -m)" = aarch64 ]; then
  skip aarch64 "this machine is an ARM one: the release build's tests are its tests"
elif [ "${CONDENSE_SKIP_CROSS:-0}" = 1 ]; then
  skip aarch64 "CONDENSE_SKIP_CROSS=1"
elif cmake --preset aarch64 -DCONDENSE_NATIVE_BITS="$PWD/$release/tests/bin/kernel_bits" >build/aarch64.configure.log 2>&1 &&
  cmake --build build/aarch64; then
  run aarch64 build/aarch64
else
  failed_build aarch64 build/aarch64.configure.log
fi
run release "$release"

"${PYTHON:-python3}" scripts/count_tests.py "${results[@]}" || status=1
exit $status
