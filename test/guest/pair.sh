#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command in each of two guests (run.sh) whose NICs are joined by a wire: COMMAND ARGUMENT... first
# in one, COMMAND ARGUMENT... second in the other. Passes if both do; 77 where there is no guest.
#   pair.sh KERNEL SECONDS COMMAND ARGUMENT...

set -uo pipefail
run=$(dirname "$0")/run.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

GUEST_NUMBER=1 GUEST_WIRE=$work/a:$work/b "$run" "$@" first >"$work/first" 2>&1 &
first=$!
GUEST_NUMBER=2 GUEST_WIRE=$work/b:$work/a "$run" "$@" second >"$work/second" 2>&1
second=$?
wait $first
first=$?
for guest in first second; do
	sed "s/^/$guest: /" "$work/$guest"
done
if [ $first -eq 77 ] && [ $second -eq 77 ]; then
	exit 77
fi
[ $first -eq 0 ] && [ $second -eq 0 ]
