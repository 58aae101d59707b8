#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What ep_report gathers, and what it keeps to itself.
#   report.sh EP_REPORT EP_INFO [NIC_DIR]      NIC_DIR has the software NIC's libraries
set -u
report=$1 nic=${3:-} failed=0
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export PATH=$work/bin:$(dirname "$2"):$PATH NCCL_IB_SL=3 NCCL_ALGO=ring CUDA_VISIBLE_DEVICES=0
unset NCCL_IB_HCA NCCL_IB_DISABLE NCCL_DEBUG

fail() {
	echo "FAILED: $*"
	failed=1
}

# Programs of a machine that this one is not.
mkdir "$work/bin"
cat >"$work/bin/dmesg" <<-'END'
	#!/bin/sh
	echo '[    1.500000] mlx5_core 0000:17:00.0: Cable plugged'
	echo '[    1.600000] audit: password of somebody'
	echo '[    1.700000] vagabond: default'
	printf '[    2.100000] NVRM: Xid \033[31m 79\n'
	n=100
	while [ $n -lt ${LINES:-100} ]; do n=$((n + 1)); echo "[  $n.000000] pcieport number $n"; done
END
printf '#!/bin/sh\necho "hca_id: $1 made_up"\n' >"$work/bin/ibv_devinfo"
chmod +x "$work/bin"/*

secrets=(NCCL_OWN_KEY=abc123 NCCL_PROXY_URL=http://u:abc123@h CUDA_LICENSE_PWD=abc123 MLX5_PASSPHRASE=abc123 NCCL_EP_TOKEN=abc123)
env "${secrets[@]}" OTHER_KEY=xyz NCCL_NET="$(printf 'EP\n  NCCL_PROTO=forged\n\033[31m')" ${nic:+LD_LIBRARY_PATH="$nic:${LD_LIBRARY_PATH-}"} \
	VC_NICS=2 "$report" >"$work/said" 2>&1 || fail "status $?"
for line in '^Versions$' '^Devices$' '^Parameters$' '^RDMA$' '^  NCCL_IB_SL=3$' '^  NCCL_OWN_KEY=\(not shown\)$' '^  NCCL_ALGO=ring$' \
	'^  CUDA_VISIBLE_DEVICES=0$' '^  NCCL_EP_TOKEN=\(not shown\)$' '^  NCCL_NET=EP\?  NCCL_PROTO=forged\?\?\[31m$' \
	'^  mlx5_core  ' '^  locked memory ' "^  Linux $(uname -r)" '^  hca_id: -v made_up$' \
	'^  Queue pairs, made and destroyed again$' '^  libibverbs.so.1: ' \
	'^  \[    1.500000\] mlx5_core 0000:17:00.0: Cable plugged$' '^  \[    2.100000\] NVRM: Xid \?\[31m 79$'; do
	grep -Eq -e "$line" "$work/said" || fail "the report lacks $line: $(cat "$work/said")"
done
for line in abc123 OTHER_KEY xyz '^  NCCL_PROTO' $'\033' audit vagabond; do
	grep -Eq -e "$line" "$work/said" && fail "the report has $line: $(cat "$work/said")"
done
if [ -n "$nic" ]; then
	for line in '^    mlx5_1:1, [0-9]+ Mbit/s$' '^      queue pair by commands, .*: connected with itself' "^  libibverbs.so.1: $nic/"; do
		grep -Eq -e "$line" "$work/said" || fail "the report lacks $line: $(cat "$work/said")"
	done
fi
LINES=200 "$report" | sed -n '/^Kernel log/,$p' >"$work/said"
[ "$(wc -l <"$work/said")" = 41 ] && [ "$(tail -n 1 "$work/said")" = '  [  200.000000] pcieport number 200' ] ||
	fail "the kernel's log: $(cat "$work/said")"
printf '#!/bin/sh\necho "not permitted" >&2; exit 1\n' >"$work/bin/dmesg"
"$report" | grep -q '^Kernel log: not permitted. Add what' || fail "a kernel's log that cannot be read"
rm "$work/bin/ibv_devinfo"
PATH=$work/bin:$(dirname "$2"):/usr/bin:/bin
command -v ibv_devinfo >/dev/null || "$report" | grep -q '^  ibv_devinfo: not installed$' || fail "a program that is not there"
"$report" >/dev/full 2>/dev/null && fail "a full disk is no error"
"$report" --bogus >"$work/said" 2>&1
[ $? = 2 ] && grep -q '^usage: ep_report ' "$work/said" || fail "a wrong command line: $(cat "$work/said")"
"$report" --help | grep -q '^ep_report --pid PID ' || fail "help"
exit $failed
