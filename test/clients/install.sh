#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs NVIDIA's Python bindings (wheels.txt) into a virtual environment of their own, for the
# tests of the suite `clients`. Nothing of it is part of the product.
#   install.sh DIR [SECONDS]
# SECONDS limits the download (180). Where the bindings cannot be had, the tests skip.

set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$1
limit=${2:-180}

# The list that was installed lies in the directory: another list means another installation.
cmp -s "$here/wheels.txt" "$dir/installed.txt" && exit 0

fail() {
    echo "clients: $*; the suite clients will skip" >&2
    rm -rf "$dir"
    exit 1
}

rm -rf "$dir"
mkdir -p "$(dirname "$dir")"
python3 -m venv "$dir" >"$dir.log" 2>&1 || fail "no virtual environment ($dir.log)"
echo "clients: pip install -r test/clients/wheels.txt (61 MB, into $dir)"
timeout "$limit" "$dir/bin/pip" install -q --disable-pip-version-check --no-cache-dir --no-deps \
    --only-binary :all: -r "$here/wheels.txt" >>"$dir.log" 2>&1 ||
    fail "the bindings cannot be had (limit $limit s, $dir.log)"
cp "$here/wheels.txt" "$dir/installed.txt"
