#!/bin/bash
# setup.sh run|test|bench|lint|install: whatever the build needs and this machine lacks: Debian packages, the pinned
# files (fetch.py), llama.cpp. Asks neither apt nor the network for what is there. Every failure is one line that says
# what is missing and how to supply it by hand.
# LLAMA_CPP_DIR set: another llama.cpp checkout, which Condense's own CMake builds; the pinned one is left alone.
set -u
cd "$(dirname "$0")/.."
mode=${1:-run}

fail() {
  echo "set-up: $*" >&2
  exit 1
}

# The tests of the ARM kernels, where this machine is no ARM one itself.
cross=
[ "$mode" = test ] && [ "${CONDENSE_SKIP_CROSS:-0}" != 1 ] && [ "$(uname -m)" != aarch64 ] && cross=yes

packages=(build-essential cmake ninja-build git ca-certificates python3 python3-pip python3-numpy pkg-config
  libhwy-dev libcli11-dev nlohmann-json3-dev libfmt-dev libtomlplusplus-dev nettle-dev libgomp1)
case $mode in
  run | install) ;;
  test)
    packages+=(libgtest-dev libgmock-dev librapidcheck-dev curl valgrind openmpi-bin libopenmpi-dev)
    [ -n "$cross" ] && packages+=(g++-aarch64-linux-gnu qemu-user)
    ;;
  bench) packages+=(libbenchmark-dev valgrind) ;;
  lint) packages+=(libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev valgrind clang-format clang-tidy) ;;
  *) fail "unknown mode '$mode': run, test, bench, lint or install" ;;
esac

# Whether what a package is wanted for is there, wherever it came from.
supplied() {
  case $1 in
    build-essential) command -v "${CXX:-c++}" && command -v make ;;
    ninja-build) command -v ninja ;;
    cmake | git | python3 | curl | pkg-config | clang-format | clang-tidy) command -v "$1" ;;
    ca-certificates) [ -d /etc/ssl/certs ] ;;
    python3-pip) "$python" -m pip --version ;;
    python3-numpy) "$python" -c 'import numpy' ;;
    libhwy-dev) pkg-config --exists libhwy libhwy-contrib ;;
    libcli11-dev) pkg-config --exists CLI11 ;;
    nlohmann-json3-dev) pkg-config --exists nlohmann_json ;;
    libfmt-dev) pkg-config --exists fmt ;;
    libtomlplusplus-dev) pkg-config --exists tomlplusplus ;;
    nettle-dev) pkg-config --exists nettle ;;
    libgtest-dev) pkg-config --exists gtest ;;
    libgmock-dev) pkg-config --exists gmock ;;
    libbenchmark-dev) pkg-config --exists benchmark ;;
    valgrind) command -v valgrind && [ -e /usr/include/valgrind/callgrind.h ] ;;
    g++-aarch64-linux-gnu) command -v aarch64-linux-gnu-g++ ;;
    openmpi-bin) command -v mpirun ;;
    libopenmpi-dev) command -v mpicc || pkg-config --exists ompi-c ;;
    qemu-user) command -v qemu-aarch64 ;;
    librapidcheck-dev) [ -e /usr/include/rapidcheck.h ] || [ -e /usr/local/include/rapidcheck.h ] ;;
    *) false ;;
  esac >/dev/null 2>&1
}

choose_python() {
  python=${PYTHON:-/usr/bin/python3}
  [ -x "$python" ] || python=$(command -v python3 || echo python3)
}

install_packages() {
  local installed='' package missing=()
  if command -v dpkg-query >/dev/null; then
    installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null | sed -n 's/^installed //p')
  fi
  for package in "${packages[@]}"; do
    grep -qx "$package" <<<"$installed" || supplied "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local by_hand="By hand: apt-get install ${missing[*]}"
  command -v apt-get >/dev/null ||
    fail "missing: ${missing[*]} (Debian's names), and there is no apt-get: install these by your system's means."
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "missing: ${missing[*]}, and this is neither root nor is there sudo. $by_hand"
    root=(sudo)
  fi
  mkdir -p build/log
  echo "installing ${missing[*]} (log: build/log/apt.log)"
  # The lists may be old or absent (then the update matters) or there may be no network (then the install may still
  # do, from apt's own store): the install alone decides.
  "${root[@]}" apt-get update >build/log/apt.log 2>&1
  if ! "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" \
    >>build/log/apt.log 2>&1; then
    fail "apt-get could not install ${missing[*]}: $(grep -E '^(E|Err|W):' build/log/apt.log | tail -1) (no network?)." \
      "$by_hand"
  fi
  hash -r
}

# The report's browser tests want Chromium; without it they are skipped, visibly, and nothing else suffers.
wish_for_chromium() {
  command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null && return
  command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ] &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium >build/log/chromium.log 2>&1 ||
    echo "no Chromium: the report's browser tests will be skipped (by hand: apt-get install chromium)"
}

check_compiler() {
  local cxx=${CXX:-c++} cc=${CC:-cc}
  command -v "${cxx%% *}" >/dev/null || fail "no C++ compiler: '$cxx' is not on PATH. By hand: apt-get install g++, or set CC and CXX."
  command -v "${cc%% *}" >/dev/null || fail "no C compiler: '$cc' is not on PATH. By hand: apt-get install gcc, or set CC and CXX."
  echo '#include <span>
#include <bit>' | $cxx -std=c++20 -fsyntax-only -x c++ - 2>/dev/null ||
    fail "'$cxx' cannot compile C++20: install g++ 11 or newer, or set CC and CXX."
  local tool
  for tool in cmake ninja pkg-config; do
    command -v $tool >/dev/null || fail "'$tool' is not on PATH. By hand: apt-get install ${tool/%ninja/ninja-build}"
  done
  [ -x "$(command -v "$python")" ] || fail "no python3 on PATH. By hand: apt-get install python3"
}

choose_python
install_packages
choose_python
check_compiler
mkdir -p build/log
[ "$mode" = test ] && wish_for_chromium
wanted=(model vega)
[ "$mode" = lint ] && wanted=() # clang-tidy needs the headers only
[ -n "${LLAMA_CPP_DIR:-}" ] || wanted=(source "${wanted[@]}")
[ -n "$cross" ] && wanted+=(aarch64)
if [ ${#wanted[@]} -gt 0 ]; then
  "$python" scripts/fetch.py "${wanted[@]}" || exit 1
fi

if [ -z "${LLAMA_CPP_DIR:-}" ] && [ "$mode" != lint ]; then
  with_tests=OFF
  [ "$mode" = test ] && with_tests=ON
  [ -e build/llama/bin/libllama.so ] || echo "building llama.cpp once: about 12 core-minutes ($(nproc) cores here)"
  cmake -DSOURCE="$PWD/build/llama.cpp" -DBUILD="$PWD/build/llama" -DWITH_TESTS=$with_tests -P cmake/BuildLlamaCpp.cmake ||
    fail "llama.cpp did not build; the compiler's or CMake's own message is above."
fi
