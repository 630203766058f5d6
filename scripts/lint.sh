#!/bin/bash
# lint.sh [BUILD_DIR]: clang-format and clang-tidy over our own files; any difference or finding fails.
# lint.sh --fix: formats in place.
# clang-tidy looks at the files of BUILD_DIR's compile_commands.json, all cores at once; a file is looked at again only
# when it, a header, or .clang-tidy changed since it last passed.
set -u
cd "$(dirname "$0")/.."
tool() { # the version that the style was written for, where there are several
  command -v "$1-14" || command -v "$1" || {
    echo "lint: no $1. By hand: apt-get install $1" >&2
    exit 1
  }
}
format=$(tool clang-format) || exit 1
mapfile -t files < <(find include src tests bench fuzz \( -name '*.cc' -o -name '*.h' \) 2>/dev/null | sort)
if [ "${1:-}" = --fix ]; then
  "$format" -i "${files[@]}"
  exit
fi

status=0
"$format" --dry-run -Werror "${files[@]}" || status=1

tidy=$(tool clang-tidy) || exit 1
tree=${1:-build/release}
[ -e "$tree/compile_commands.json" ] || { echo "lint: no $tree/compile_commands.json: build first" >&2; exit 1; }
headers=$( (cat .clang-tidy; find include src tests bench fuzz -name '*.h' 2>/dev/null | sort | xargs cat) | sha256sum)
stamps=build/lint
mkdir -p $stamps
todo=()
for file in "${files[@]}"; do
  [[ $file == *.cc ]] && grep -qF "/$file\"" "$tree/compile_commands.json" || continue
  key=$( (echo "$headers"; cat "$file") | sha256sum | cut -c1-16)
  stamp=$stamps/${file//\//_}.$key
  [ -e "$stamp" ] || todo+=("$file" "$stamp")
done
echo "clang-tidy: $((${#todo[@]} / 2)) files to look at"
check() {
  local out
  # Flags that only GCC knows are no finding; neither is the count of suppressed warnings in system headers.
  if out=$("$tidy" -p "$tree" --quiet --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unused-command-line-argument \
    ${gomp:+--extra-arg=-idirafter$gomp} "$1" 2>/dev/null) && [ -z "$out" ]; then
    rm -f "${2%.*}".*
    touch "$2"
  else
    printf '%s\n' "$out"
    return 1
  fi
}
# GCC's own folder holds omp.h; behind all others, so that clang's intrinsics stay clang's.
gomp=$(dirname "$(c++ -print-file-name=include/omp.h)")
[ -e "$gomp/omp.h" ] || gomp=
export -f check
export tidy tree gomp
if [ ${#todo[@]} -gt 0 ]; then
  printf '%s\n' "${todo[@]}" | xargs -P "$(nproc)" -n 2 bash -c 'check "$0" "$1"' || status=1
fi
[ $status -eq 0 ] && echo "lint: clean"
exit $status
