#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Debian packages of this tree and prints their paths:
#   libnccl-ep0-switchyard       the library, in a directory of its own that the loader searches last: a libnccl_ep.so.0 of
#                                another package stays the default. LD_PRELOAD chooses it
#   libnccl-ep-switchyard-dev    headers in a directory of their own, nccl-ep.pc, manual pages of the calls, examples
#   switchyard-tools             ep_perf, ep_plot, ep_routes, ep_report, ep_info, ep_topo
#   libnccl-net-ep               the network plugin for NCCL
#   build_deb.sh [--out DIR] [--build DIR] [MESON-OPTION...]
# --out DIR     where the packages go (dist/)
# --build DIR   where Meson builds (build-deb/), with a release build of all architectures
# Needs dpkg-dev, and what the build needs: see tools/setup.sh.

# shellcheck source=tools/package.sh
. "$(dirname "$0")/../package.sh"
out=dist
build=build-deb
options=()
while [ $# -gt 0 ]; do
    case $1 in
    --out) out=$2 && shift 2 ;;
    --build) build=$2 && shift 2 ;;
    -D*) options+=("$1") && shift ;;
    *) usage "$0" ;;
    esac
done
command -v dpkg-shlibdeps >/dev/null || {
    echo 'build_deb.sh: this needs dpkg-dev: apt-get install --no-install-recommends dpkg-dev' >&2
    exit 1
}
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
arch=$(dpkg-architecture -qDEB_HOST_ARCH)
lib=usr/lib/$multiarch
own=$lib/switchyard

build_release "$build" --prefix=/usr --libdir="lib/$multiarch/switchyard" --includedir=include/switchyard "${options[@]}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/stage
stage_stripped "$build" "$stage"
cuda=$(grep -aoE 'NCCL EP version [0-9.]+\+cuda[0-9.]+' "$stage/$own"/libnccl_ep.so.0 | sed -n '1s/.*+cuda//p')
version=$(sed -n "s/^ *version: '\(.*\)',/\1/p" "$top/meson.build")-1+cuda$cuda

# take PACKAGE PATH...: moves them there from the stage, each to the same place
take() {
    local package=$1 path
    shift
    for path in "$@"; do
        mkdir -p "$work/$package/$(dirname "$path")"
        mv "$stage/$path" "$work/$package/$path"
    done
}

# below DIR PATTERN: files and links of the stage, as take wants them
below() {
    (cd "$stage" && find "$1" \( -type f -o -type l \) -path "$2")
}

# depends PACKAGE FILE...: on the packages of the system's libraries that they need
depends() {
    local package=$1 control=$work/shlibs
    shift
    mkdir -p "$control/debian"
    printf 'Source: switchyard\n\nPackage: %s\nArchitecture: any\n' "$package" >"$control/debian/control"
    (cd "$control" && dpkg-shlibdeps -O --ignore-missing-info "-l$work/$package/$own" "-l$work/libnccl-ep0-switchyard/$own" \
        "$@" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
}

# pack PACKAGE DESCRIPTION CONTROL-LINE...: writes its control file and its copyright
pack() {
    local package=$1 description=$2 dir=$work/$1
    shift 2
    mkdir -p "$dir/DEBIAN" "$dir/usr/share/doc/$package"
    if [ -d "$dir/usr/share/man" ]; then find "$dir/usr/share/man" -type f -exec gzip -9n {} +; fi
    {
        printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n'
        printf 'Upstream-Name: Switchyard\n\nFiles: *\nCopyright: the contributors of Switchyard\nLicense: Apache-2.0\n'
        printf ' See /usr/share/common-licenses/Apache-2.0.\n'
    } >"$dir/usr/share/doc/$package/copyright"
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\n' "$package" "$version" "$arch"
        printf 'Maintainer: Switchyard contributors <switchyard@localhost>\nSection: libs\nPriority: optional\n'
        printf 'Installed-Size: %s\n' "$(du -sk --exclude=DEBIAN "$dir" | cut -f 1)"
        printf '%s\n' "$@"
        printf 'Description: %s\n' "$description"
    } >"$dir/DEBIAN/control"
    (cd "$dir" && find -- * -path DEBIAN -prune -o -type f -exec md5sum {} + | sort -k 2 >DEBIAN/md5sums)
    mkdir -p "$out"
    dpkg-deb --root-owner-group --build "$dir" "$out/${package}_${version}_$arch.deb" >&2
    echo "$out/${package}_${version}_$arch.deb"
}

take libnccl-net-ep "$own/libnccl-net-ep.so" usr/share/man/man7/nccl-net-ep.7
mkdir -p "$work/libnccl-net-ep/$lib" # where NCCL's dlopen finds it
mv "$work/libnccl-net-ep/$own/libnccl-net-ep.so" "$work/libnccl-net-ep/$lib/" && rmdir "$work/libnccl-net-ep/$own"
mapfile -t files < <(below "$own" '*.so.*' && below usr/share/man '*/man7/*')
take libnccl-ep0-switchyard "${files[@]}"
mapfile -t files < <(below usr/bin '*' && below usr/libexec '*' && below usr/share/man '*/man1/*' && below usr/share '*/site-functions/*' &&
    below usr/share '*/bash-completion/*')
take switchyard-tools "${files[@]}"
mapfile -t files < <(below usr/include '*' && below "$own" '*' && below usr/share/man '*/man3/*' && below usr/share/doc '*')
take libnccl-ep-switchyard-dev "${files[@]}"
mkdir -p "$work/libnccl-ep-switchyard-dev/$lib/pkgconfig"
mv "$work/libnccl-ep-switchyard-dev/$own/pkgconfig"/*.pc "$work/libnccl-ep-switchyard-dev/$lib/pkgconfig/"
rmdir "$work/libnccl-ep-switchyard-dev/$own/pkgconfig"
rest=$(find "$stage" -type f -o -type l)
[ -z "$rest" ] || { printf 'build_deb.sh: no package takes %s\n' "$rest" >&2 && exit 1; }

# After the directories that /etc/ld.so.conf names before it.
mkdir -p "$work/libnccl-ep0-switchyard/etc/ld.so.conf.d" "$work/libnccl-ep0-switchyard/DEBIAN"
echo "/$own" >"$work/libnccl-ep0-switchyard/etc/ld.so.conf.d/zz-switchyard.conf"
echo /etc/ld.so.conf.d/zz-switchyard.conf >"$work/libnccl-ep0-switchyard/DEBIAN/conffiles"
echo 'activate-noawait ldconfig' >"$work/libnccl-ep0-switchyard/DEBIAN/triggers"

same="libnccl-ep0-switchyard (= $version)"
pack libnccl-ep0-switchyard "expert-parallel dispatch and combine, with the NCCL EP interface
 Beside another library of this soname: LD_PRELOAD=/$own/libnccl_ep.so.0
 chooses this one. Groups on several hosts need libhwloc15 and libexpat1." \
    "Depends: $(depends libnccl-ep0-switchyard "$work/libnccl-ep0-switchyard/$own/libnccl_ep.so.0")" \
    'Recommends: libhwloc15, libexpat1, libibverbs1, ibverbs-providers' 'Suggests: libnccl2 (>= 2.28)'
pack libnccl-net-ep "network plugin for NCCL, NCCL_NET_PLUGIN=ep" \
    "Depends: $(depends libnccl-net-ep "$work/libnccl-net-ep/$lib/libnccl-net-ep.so")" \
    'Recommends: libibverbs1, ibverbs-providers'
pack libnccl-ep-switchyard-dev "headers of libnccl-ep0-switchyard
 In /usr/include/switchyard; pkg-config nccl-ep names it." "Depends: $same"
pack switchyard-tools "measures and explains expert-parallel dispatch and combine
 ep_perf needs libnccl2." \
    "Depends: $same, $(depends switchyard-tools "$work"/switchyard-tools/usr/bin/ep_info "$work"/switchyard-tools/usr/bin/ep_topo)" \
    'Recommends: libnccl2 (>= 2.28)' 'Suggests: python3, python3-matplotlib'
