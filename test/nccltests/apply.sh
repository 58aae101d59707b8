#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# apply.sh of nccl-tests-patch/ on two releases: files and build files are changed as they should be,
# twice is once, the way back leaves nothing, other directories and releases that a patch does not
# fit are refused and stay as they are. With nvcc the two tests are compiled.
#   apply.sh PATCH_DIR NVCC|none EP_INCLUDE NCCL_INCLUDE
# NCCL_TESTS_GIT names a clone of github.com/NVIDIA/nccl-tests (its git directory is enough).

set -euo pipefail
patch_dir=$1 nvcc=$2 ep_include=$3 nccl_include=$4
releases=(v2.18.5 v2.19.6)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if "$patch_dir/apply.sh" "$work" 2>"$work/why"; then
	echo "an empty directory is taken for nccl-tests"
	exit 1
fi
grep -q "no checkout of nccl-tests" "$work/why"

# A release that one of the two patches does not fit stays as it is.
mkdir -p "$work/odd/src"
echo '#define NCCL_TESTS_VERSION "2.99"' >"$work/odd/src/common.h"
printf '%s\n' 'BIN_FILES := $(BIN_FILES_LIST:%=${DST_DIR}/%_perf${NAME_SUFFIX})' '' >"$work/odd/src/Makefile"
echo 'project(odd)' >"$work/odd/src/CMakeLists.txt"
cp -r "$work/odd" "$work/odd.before"
if "$patch_dir/apply.sh" "$work/odd" 2>"$work/why"; then
	echo "a patch that does not fit is taken for one that does"
	exit 1
fi
grep -q "cmake.patch does not fit" "$work/why"
diff -r "$work/odd.before" "$work/odd"
if [ -z "${NCCL_TESTS_GIT-}" ]; then
	echo "skipped: NCCL_TESTS_GIT names no clone of nccl-tests"
	exit 77
fi

for release in "${releases[@]}"; do
	tree=$work/$release
	mkdir "$tree" "$tree.before"
	git --git-dir="$(git -C "$NCCL_TESTS_GIT" rev-parse --absolute-git-dir)" archive "$release" |
		tee >(tar -x -C "$tree.before") | tar -x -C "$tree"
	wait
	"$patch_dir/apply.sh" "$tree"
	"$patch_dir/apply.sh" "$tree"
	make -n -C "$tree/src" NCCL_EP_HOME=/ep NCCL_EP_LIB=/ep/lib NCCL_HOME=/nccl >"$work/plan"
	for test in ep_dispatch ep_combine; do
		grep -q -- "-I/ep/include -c $test.cu" "$work/plan"
		grep -q -- "-o ../build/${test}_perf .*-L/ep/lib -Xlinker -rpath=/ep/lib -lnccl_ep" "$work/plan"
	done
	[ "$(grep -c -- -lnccl_ep "$work/plan")" -eq 2 ]
	grep -q -- "-o ../build/sendrecv_perf " "$work/plan"
	[ ! -f "$tree/src/CMakeLists.txt" ] || grep -qxF 'include(ep.cmake)' "$tree/src/CMakeLists.txt"
	for test in ep_dispatch ep_combine; do
		[ "$nvcc" != none ] || break
		"$nvcc" -std=c++17 --extended-lambda -DNCCL_OS_LINUX -arch=sm_90 -I"$tree/os" -I"$ep_include" \
			-I"$nccl_include" -c "$tree/src/$test.cu" -o "$work/$test.o"
	done
	"$patch_dir/apply.sh" --revert "$tree"
	diff -r "$tree.before" "$tree"
	# With no patch at all.
	"$patch_dir/apply.sh" --files-only "$tree"
	LIBRARIES=nccl_ep make -n -C "$tree/src" BIN_FILES_LIST="ep_dispatch ep_combine" >"$work/plan"
	grep -q -- "-o ../build/ep_combine_perf .*-lnccl_ep -lnccl" "$work/plan"
	! grep -q sendrecv_perf "$work/plan"
	echo "$release: right"
done
