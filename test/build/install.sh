#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs into a DESTDIR and looks at what is there with a newcomer's eyes.
#   install.sh BUILD_DIR SOURCE_ROOT PREFIX BINDIR LIBDIR NCCL_LIB VCLUSTER_DIR gpu|none
# VCLUSTER_DIR's library takes the place of the one for GPUs where that is not built.

set -euo pipefail
build=$1 source=$2 prefix=$3 bin=$3/$4 lib=$3/$5 nccl=$6 vcluster=$7 flavour=$8
. "$(dirname "$0")/checks.sh"
root=$work/root

# has FILE...: below the prefix
has() {
    local file
    for file in "$@"; do
        [ -s "$root$prefix/$file" ] || fail "$file is not installed"
    done
}
# says PATTERN COMMAND...: a line of its output matches
says() {
    local pattern=$1
    shift
    "$@" >"$work/out" 2>&1 || true
    grep -Eq -e "$pattern" "$work/out" || fail "$* has no line like '$pattern':" "$(<"$work/out")"
}

DESTDIR=$root meson install -C "$build" --no-rebuild --quiet
has include/nccl_ep.h include/nccl_ep/{arrivals,ext}.h \
    share/doc/nccl-ep/examples/{calls.c,early.cu,hello.c,processes.c,training.c} \
    share/doc/nccl-ep/{README.md,CHANGELOG.md,LICENSE} "${lib#"$prefix"/}/libnccl-net-ep.so"
for page in "$source"/doc/*.md "$source"/doc/design/*.md; do has "share/doc/nccl-ep/${page#"$source"/}"; done
for page in "$source"/doc/man/*.[1-7]; do
    [ "${page##*/}" = vcrun.1 ] || has "share/man/man${page##*.}/${page##*/}"
done
has share/man/man7/nccl_ep_env.7 share/man/man7/nccl_ep_errors.7

# Pages name pages and pictures that are installed, at the place that they name. (CONTRIBUTING.md is about the sources.)
docs=$root$prefix/share/doc/nccl-ep
while read -r name section; do
    has "share/man/man$section/$name.$section"
done < <(sed -nE 's/^\.BR ((nccl|ep_|vcrun)[A-Za-z0-9_\\-]*) \(([1-7])\).*/\1 \3/p' "$root$prefix"/share/man/man*/* |
    sed 's/\\-/-/g' | sort -u)
while IFS=: read -r page name; do
    [ -e "${page%/*}/$name" ] || [ -e "$docs/$name" ] || [ ! -e "$source/$name" ] || fail "$page names $name, which is not installed"
done < <(cd "$docs" && grep -oE '[A-Za-z_./-]+\.(md|svg)' README.md doc/*.md doc/design/*.md examples/README.md | sort -u |
    sed "s,^,$docs/,")
while read -r name; do
    [ -e "$docs/$name" ] || [ -e "$docs/doc/$name" ] || fail "a manual page names $name, which is not installed"
done < <(grep -ohE '[A-Za-z_./-]+\.md' "$root$prefix"/share/man/man*/* | sort -u)

# The tools find the library that came with them, wherever that is; the loader does not.
mkdir "$work/deps"
libraries=$work/deps:$nccl
if [ "$flavour" = none ]; then
    mkdir -p "$root$lib"
    cp "$vcluster/libnccl_ep.so.0" "$root$lib"
    ln -s "$vcluster"/libvcluster.so "$work/deps"
fi
if [ -x "$root$bin/ep_info" ]; then
    says "^  libnccl_ep.so.0 +[0-9.]+, $root$lib/libnccl_ep.so[0-9.]*; programs do not find it" \
        env LD_LIBRARY_PATH="$libraries" "$root$bin/ep_info" -v
    says "^  libnccl_ep.so.0 +[0-9.]+, $root$lib/libnccl_ep.so[0-9.]*$" \
        env LD_LIBRARY_PATH="$libraries:$root$lib" "$root$bin/ep_info" -v
    mkdir "$work/other"
    cp "$(readlink -f "$root$lib/libnccl_ep.so.0")" "$work/other/libnccl_ep.so.0"
    says "^  libnccl_ep.so.0 +[0-9.]+, $work/other/libnccl_ep.so.0$" \
        env LD_LIBRARY_PATH="$libraries:$work/other" "$root$bin/ep_info" -v
    says "^  installed with ep_info +[0-9.]+, $root$lib/" \
        env LD_LIBRARY_PATH="$libraries:$work/other" "$root$bin/ep_info" -v
    [ "$flavour" = gpu ] || says '^  libnccl_ep.so.0 .*does not load: .*libvcluster.so' \
        env LD_LIBRARY_PATH= "$root$bin/ep_info" -v
    says '^  Queue pairs, made and destroyed again$' env LD_LIBRARY_PATH="$libraries" "$root$bin/ep_report"
    readelf -d "$root$bin/ep_info" | grep -E 'RPATH|RUNPATH' && fail "ep_info has a run path"
fi
if [ "$flavour" = none ]; then
    exit $failed
fi

for file in measure.sh ep_perf ep_plot; do has "libexec/nccl-ep/$file"; done
says '^ep_perf [0-9.]+' env LD_LIBRARY_PATH="$nccl" "$root$prefix/libexec/nccl-ep/ep_perf" --version
mkdir "$work/bin" # of a machine with a GPU, as far as a list of steps goes
printf '#!/bin/sh\necho "GPU 0: name"\n' >"$work/bin/nvidia-smi"
chmod +x "$work/bin/nvidia-smi"
says '^ll.em.none' env PATH="$work/bin:$PATH" LD_LIBRARY_PATH="$nccl" "$root$prefix/libexec/nccl-ep/measure.sh" --list
says '^ep_perf [0-9.]+' env LD_LIBRARY_PATH="$nccl" "$root$bin/ep_perf" --version

# The pkg-config file is enough to build the examples, and they find their libraries.
mkdir "$work/pc"
sed "s|^prefix=.*|prefix=$root$prefix|" "$root$lib/pkgconfig/nccl-ep.pc" >"$work/pc/nccl-ep.pc"
export PKG_CONFIG_PATH=$work/pc
says "^$root$prefix/include$" pkg-config --variable=includedir nccl-ep
says '/elsewhere/lib64' pkg-config --define-variable=cudadir=/elsewhere --libs nccl-ep
read -r -a flags <<<"$(pkg-config --cflags --libs nccl-ep)"
${CC:-cc} -std=gnu11 "$root$prefix/share/doc/nccl-ep/examples/processes.c" -o "$work/processes" \
    "${flags[@]}" || fail "the example does not build"
[ "$prefix" = /usr ] || says "libnccl_ep.so.0 => $root$lib/" env -u LD_LIBRARY_PATH ldd "$work/processes"
! grep 'not found' "$work/out" || fail "the example does not find its libraries"
exit $failed
