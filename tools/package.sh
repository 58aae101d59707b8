# SPDX-License-Identifier: Apache-2.0
# For tools/wheel/build_wheel.sh and tools/deb/build_deb.sh, which source it.
# shellcheck shell=bash

set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$top/.deps/venv/bin:$PATH

# usage SCRIPT: prints the comment at its head, and ends
usage() {
    sed -n '3,/^[^#]\|^$/s/^# \{0,1\}//p' "$1" >&2
    exit 2
}

# build_release BUILD MESON-OPTION...: of all that is installed, without tests
build_release() {
    local build=$1 again=()
    shift
    [ ! -f "$build/build.ninja" ] || again=(--reconfigure)
    meson setup "${again[@]}" "$build" "$top" --buildtype=release -Dcuda=enabled -Dtests=false -Dvcluster=false "$@" >&2
    ninja -C "$build" >&2
}

# stage_stripped BUILD DIR: what is built there, installed below DIR
stage_stripped() {
    local file
    DESTDIR=$2 meson install -C "$1" --no-rebuild --quiet >&2
    while read -r file; do
        if readelf -h "$file" >/dev/null 2>&1; then strip --strip-unneeded "$file"; fi
    done < <(find "$2" -type f \( -name '*.so*' -o -path '*/bin/*' \))
}
