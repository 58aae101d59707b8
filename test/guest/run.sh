#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command as root in a throw-away guest: Debian's kernel (kernel.sh) over this machine's
# files, which it reads and never writes. No KVM, no network, no root here. Ends with the command's
# status, with 77 where there is no guest, with 124 after SECONDS.
#   run.sh KERNEL SECONDS COMMAND ARGUMENT...
# GUEST_WIRE=OWN:OTHER    its NIC's wire ends at the sockets OWN and OTHER of this machine, the other
#                         guest's way round (pair.sh)
# GUEST_NUMBER=0..255     tells the NICs of guests apart

set -uo pipefail
kernel=$1
seconds=$2
shift 2

skip() {
	echo "skipped: $1; tools/setup.sh all sets it up"
	exit 77
}
command -v qemu-system-x86_64 >/dev/null || skip "no qemu-system-x86_64 here"
[ -f "$kernel/vmlinuz" ] && [ -f "$kernel/initrd" ] || skip "no kernel for a guest in $kernel"

# Emulated, "rep movsb" is slower than what the C library does without it. On a busy machine the timer does
# not tick as fast as the kernel wants to see before it goes on.
qemu=(qemu-system-x86_64 -accel tcg,thread=multi -cpu max,-erms,-fsrm -smp 2 -m 3072
	-nodefaults -display none -serial stdio -no-reboot
	-kernel "$kernel/vmlinuz" -initrd "$kernel/initrd"
	-append "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check -- $*"
	-virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap)
if [ -n "${GUEST_WIRE:-}" ]; then
	qemu+=(-netdev "dgram,id=wire,local.type=unix,local.path=${GUEST_WIRE%:*},remote.type=unix,remote.path=${GUEST_WIRE#*:}"
		-device "virtio-net-pci,netdev=wire,host_mtu=9000,$(printf 'mac=02:00:00:00:01:%02x' "${GUEST_NUMBER:-0}")")
fi
output=$(mktemp)
trap 'rm -f "$output"' EXIT
timeout --foreground --kill-after=5 "$seconds" "${qemu[@]}" </dev/null 2>&1 | tr -d '\r' | tee "$output"
[ "${PIPESTATUS[0]}" -ne 124 ] || exit 124
status=$(sed -n 's/.*guest: status \([0-9]*\)$/\1/p' "$output")
exit "${status:-1}"
