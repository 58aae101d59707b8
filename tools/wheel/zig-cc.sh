#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A C compiler that links for an older glibc than this machine's: zig, of PyPI's package ziglang, which has the symbols of each.
#   zig-cc.sh GLIBC-VERSION COMPILER-ARGUMENT...
# Headers of libraries come from this machine, and so do the libraries, whose own needs are not looked at.
# Meson asks for the linker's name and for macros in ways that zig does not answer.

version=$1
shift
target=x86_64-linux-gnu.$version
case " $* " in
*" -Wl,--version "*)
    echo 'LLD 17.0.0 (compatible with GNU linkers)'
    exit 0
    ;;
*" -dM "*) target=x86_64-linux-gnu ;;
esac
zig=$(python3 -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))') || exit 1
exec "$zig" cc -target "$target" -idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu \
    -Wl,--allow-shlib-undefined "$@"
