#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/setup.sh where it cannot install: it says what is missing and what to do once, and fetches nothing.
# tools/cuda12.sh leaves a directory alone that it has not made.
#   set_up.sh SOURCE_ROOT

set -uo pipefail
source=$1
. "$(dirname "$0")/checks.sh"
mkdir -p "$work/tree/tools" "$work/bin"
cp "$source"/tools/*.sh "$source"/tools/*.txt "$work/tree/tools/"
for program in bash sh dirname sed sort head tail uname cat mkdir grep ln readlink; do
    ln -s "$(command -v $program)" "$work/bin/"
done
ln -s "$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')" "$work/bin/python3"
printf '#!/bin/sh\necho 1000\n' >"$work/bin/id"
chmod +x "$work/bin/id"

# said STATUS: what it says, and ends with
said() {
    local status=0
    env -i PATH="$work/bin" CUDA_HOME=/none HOME="$work" "$work/tree/tools/setup.sh" >"$work/out" 2>&1 || status=$?
    [ $status = "$1" ] || fail "it ends with $status, not $1: $(<"$work/out")"
}

for apt in '' apt-get; do # neither root nor sudo
    [ -z "$apt" ] || ln -s /bin/false "$work/bin/$apt"
    said 1
    commands=$(grep -o 'apt-get install .*' "$work/out")
    [ "$(wc -l <<<"$commands")" = 1 ] || fail "one command is to be copied: $(<"$work/out")"
    for package in gcc ninja-build meson libibverbs-dev libexpat1-dev libhwloc-dev; do
        [[ " $commands " = *" $package "* ]] || fail "$package is not in '$commands'"
    done
    [ ! -e "$work/tree/.deps/venv" ] || fail 'it fetches something before it gives up'
done
grep -q 'neither root nor sudo; have an administrator run: apt-get install' "$work/out" || fail "no reason: $(<"$work/out")"

rm -rf "$work/tree/.deps"
touch "$work/tree/.deps" # as little can be made there as in a tree that is read-only
said 1
[ "$(wc -l <"$work/out")" = 1 ] && grep -q "cannot be made.*meson setup DIR $work/tree does without" "$work/out" ||
    fail "a read-only tree: $(<"$work/out")"

mkdir "$work/mine"
touch "$work/mine/notes"
for program in cmp ls; do
    ln -s "$(command -v $program)" "$work/bin/"
done
for dir in "$work/mine" "$work/mine/" "$work/mine/notes"; do
    if env -i PATH="$work/bin" "$work/tree/tools/cuda12.sh" "$dir" >"$work/out" 2>&1; then fail "$dir is taken"; fi
    grep -q "${dir%/} has something else in it" "$work/out" || fail "no reason for $dir: $(<"$work/out")"
done
[ -e "$work/mine/notes" ] || fail 'what was in it is gone'
exit $failed
