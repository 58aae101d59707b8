#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Adds ep_dispatch_perf and ep_combine_perf to a checkout of nccl-tests, or takes them out again.
#   apply.sh [--files-only | --revert] CHECKOUT
# --files-only: the build files stay as they are (README.md has how to build then).

set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
files=(ep_dispatch.cu ep_combine.cu ep_common.h ep_options.h ep.mk ep.cmake)
how=apply
case ${1-} in
--files-only) how=files && shift ;;
--revert) how=revert && shift ;;
esac
if [ $# -ne 1 ]; then
	echo "usage: apply.sh [--files-only | --revert] CHECKOUT" >&2
	exit 2
fi
src=$1/src
if ! [ -f "$src/common.h" ] || ! [ -f "$src/Makefile" ] || ! grep -q NCCL_TESTS_VERSION "$src/common.h"; then
	echo "$1 is no checkout of nccl-tests: src/common.h and src/Makefile are missing, or others" >&2
	exit 1
fi

# change try|now FILE PATCH LINE: the patch is in, which adds that line, or out; or whether it can be.
change() {
	local when=$1 direction=--forward
	shift
	[ -f "$src/$1" ] || return 0
	if grep -qxF "$3" "$src/$1"; then
		[ $how = revert ] || return 0
		direction=--reverse
	elif [ $how = revert ]; then
		return 0
	fi
	if [ $when = try ]; then
		patch -s -p2 -d "$src" $direction --dry-run <"$here/$2" >/dev/null && return
		echo "$2 does not fit $src/$1: see README.md for the way without it" >&2
		exit 1
	fi
	patch -s -p2 -d "$src" $direction --no-backup-if-mismatch <"$here/$2"
}

if [ $how != files ]; then
	for when in try now; do # both or none
		change $when Makefile makefile.patch 'include ep.mk'
		change $when CMakeLists.txt cmake.patch 'include(ep.cmake)'
	done
fi
for file in "${files[@]}"; do
	if [ $how = revert ]; then
		rm -f "$src/$file"
	else
		cp "$here/$file" "$src/$file"
	fi
done
