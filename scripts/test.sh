#!/bin/bash
# Runs every test: first the fast ones under AddressSanitizer and UndefinedBehaviorSanitizer (unless
# CONDENSE_SKIP_ASAN=1), then all of them in the release build, one at a time: two OpenMP programs on the same cores
# crawl. The last line counts both.
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
  ctest --test-dir "$tree" --output-on-failure --no-tests=error --output-junit "$xml" -j1 "$@" || status=1
  results+=("$xml")
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
    echo "the sanitizer build failed (build/asan.configure.log, and above)" >&2
    results+=(build/log/asan.xml)
    rm -f build/log/asan.xml
    status=1
  fi
fi
run release "$release"

"${PYTHON:-python3}" scripts/count_tests.py "${results[@]}" || status=1
exit $status
