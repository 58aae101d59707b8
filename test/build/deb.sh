#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Debian packages: built, unpacked together into one root beside a library of another package, and installed in a bare
# Debian 12.
#   deb.sh SOURCE_ROOT BUILD_DIR gpu|none ARCH

set -euo pipefail
. "$(dirname "$0")/checks.sh"
source=$1 build=$2 flavour=$3 arch=$4
# What it lacks it names, in one line.
mkdir "$work/bin"
ln -s "$(command -v bash)" "$(command -v dirname)" "$work/bin/"
said=$(PATH=$work/bin bash "$source/tools/deb/build_deb.sh" 2>&1) && fail 'it builds packages without dpkg-dev'
[ "$said" = 'build_deb.sh: this needs dpkg-dev: apt-get install --no-install-recommends dpkg-dev' ] || fail "without dpkg-dev: $said"
if [ "$flavour" = none ] || ! command -v dpkg-shlibdeps >/dev/null; then
    echo 'skipped: no GPU library in this build, or no dpkg-dev'
    exit $((failed ? 1 : 77))
fi

mapfile -t debs < <("$source/tools/deb/build_deb.sh" --out "$work/out" --build "$build" -Dgpu_archs="$arch")
[ ${#debs[@]} = 4 ] || fail "${#debs[@]} packages: ${debs[*]}"
for deb in "${debs[@]}"; do
    dpkg-deb --contents "$deb" | awk '$1 !~ /^d/ { print $6 }' >>"$work/files"
    dpkg-deb -x "$deb" "$work/root"
    dpkg-deb -f "$deb" Depends | grep -q . || fail "$deb depends on nothing"
    dpkg-deb -f "$deb" Depends | grep -q nccl2 && fail "$deb needs NCCL"
done
sort "$work/files" | uniq -d | grep . && fail 'two packages have the same file'
lib=usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
# Whatever another package of this soname brings there is left alone.
for file in "$lib"/libnccl_ep.so{,.0} usr/include/nccl_ep.h; do
    [ ! -e "$work/root/$file" ] || fail "a package has $file"
done
for file in "$lib"/libnccl-net-ep.so "$lib"/switchyard/libnccl_ep.so.0 usr/bin/ep_perf usr/include/switchyard/nccl_ep/ext.h; do
    [ -s "$work/root/$file" ] || fail "no package has $file"
done
LD_PRELOAD=$work/root/$lib/switchyard/libnccl_ep.so.0 /bin/true || fail 'it cannot be preloaded'
PKG_CONFIG_PATH=$work/root/$lib/pkgconfig pkg-config --cflags nccl-ep | grep -q -- '-I/usr/include/switchyard' ||
    fail 'pkg-config does not name the headers'
[ "$(PKG_CONFIG_PATH=$work/root/$lib/pkgconfig pkg-config --variable=cudadir nccl-ep)" = /usr/local/cuda ] ||
    fail "pkg-config names this machine's CUDA"
! grep -q rpath "$work/root/$lib/pkgconfig/nccl-ep.pc" || fail 'pkg-config has a run path'
"$work/root/usr/bin/ep_info" -V | grep -q '^ep_info [0-9.]*$' || fail 'ep_info does not run'
# Where bare roots can be made, apt installs and removes them in one.
status=0
"$source/test/build/fresh.sh" --dir "$source/.deps/fresh" --packages "$work/out" debian/bookworm || status=$?
[ $status = 0 ] || [ $status = 77 ] || fail 'not in a bare root'
exit $failed
