#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Usage: tables.sh EP_TOPO TABLES FILES_DIR [recorded]
# A line "#! NAME: [VARIABLE=value ...] FILE" of TABLES begins a table: what ep_topo must print for FILE in that
# environment, its exit status included if that is not 0.
set -u
ep_topo=$(realpath "$1") tables=$(realpath "$2") files=$3
[ "${4:-}" = recorded ] && files=${EP_TOPOLOGIES:-$files}

if [ ! -d "$files" ]; then
	echo "skipped: no recorded machines in $files (EP_TOPOLOGIES names another place)"
	exit 77
fi
unset NCCL_TOPO_FILE HWLOC_XMLFILE NCCL_IB_HCA NCCL_IB_DISABLE NCCL_NET_GDR_LEVEL
export NCCL_NVLS_ENABLE=2 # whatever /etc/nccl.conf says
export NCCL_CONF_FILE=/nonexistent # no .nccl.conf
cd "$files" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
run=0 failed=0 absent=0

awk -v work="$work" '/^#! / { name = $2; sub(/:$/, "", name); print > (work "/names"); next } { print > (work "/" name) }' "$tables"
while read -r _ name line; do
	file=${line##* }
	env=${line% *}
	[ "$env" = "$line" ] && env=
	if [ ! -e "$file" ]; then
		echo "$name no file $file"
		absent=$((absent + 1))
		continue
	fi
	# shellcheck disable=SC2086
	env $env "$ep_topo" "$file" >"$work/got" 2>&1
	status=$?
	[ $status -eq 0 ] || echo "exit status $status" >>"$work/got"
	run=$((run + 1))
	if ! diff -u "$work/${name%:}" "$work/got"; then
		echo "FAILED: ${name%:}"
		failed=$((failed + 1))
	fi
done <"$work/names"
lost=$("$ep_topo" -V 2>&1 >/dev/full) && failed=$((failed + 1))
case $lost in
*'No space left'*) ;;
*) echo "FAILED: a full disk: $lost" && failed=$((failed + 1)) ;;
esac
echo "$run tables, $failed wrong, $absent without their file"
[ $run -gt 0 ] && [ $failed -eq 0 ] && [ $absent -eq 0 ]
