#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In a bare root, beside Debian's packages of this tree: installs them by apt with what they depend on, tries what needs no
# GPU, and removes them. fresh.sh --packages runs it.
set -u
failed=0
export DEBIAN_FRONTEND=noninteractive

fail() {
    echo "FAILED: $*"
    failed=1
}

try() {
    "$@" >/tmp/said 2>&1 || { fail "$*: $(tail -n 3 /tmp/said)"; return 1; }
}

find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /root -o -path /var \) -prune -o -print |
    sort >/tmp/before
apt-get -q update || exit 1
apt-get -q install -y --no-install-recommends ./*.deb || exit 1
packages=$(for deb in ./*.deb; do dpkg-deb -f "$deb" Package; done)
for package in $packages; do
    dpkg-query -W -f '${Status}\n' "$package" | grep -qx 'install ok installed' || fail "$package is not installed"
    changed=$(dpkg --verify "$package" | grep -v '/usr/share/\(man\|doc\)/') # which Debian's images leave out
    [ -z "$changed" ] || fail "$package: $changed"
done
lib=$(dpkg -L libnccl-ep0-switchyard | grep '/libnccl_ep.so.0$') || fail 'no library'
try ep_info -V
try ep_info -v && { grep -q "Switchyard .*$lib" /tmp/said || fail "ep_info -v does not name $lib: $(cat /tmp/said)"; }
try ep_info --memory --experts 256 --hidden 7168 --tokens 128 --ranks 64 && { grep -q possible /tmp/said || fail 'no answer'; }
try ep_info --live
try ep_topo --version
LD_PRELOAD=$lib NCCL_EP_DEBUG=1 /bin/true 2>/tmp/said || fail 'it cannot be preloaded'
grep -q Switchyard /tmp/said || fail "it is preloaded without a word: $(cat /tmp/said)"
ldconfig -p | grep -q "libnccl_ep.so.0 .*switchyard" || fail 'ldconfig does not find it'
# shellcheck disable=SC2086 # it is words
apt-get -q purge -y $packages || fail 'they cannot be removed'
apt-get -q autoremove --purge -y || fail 'what they needed cannot be removed'
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /root -o -path /var \) -prune -o -print |
    sort >/tmp/after
left=$(diff /tmp/before /tmp/after | grep '^>' | grep -i 'switchyard\|nccl') && fail "left behind: $left"
[ $failed -eq 0 ] && echo "installed, tried and removed: $(echo $packages)"
exit $failed
