#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the mirror of a distribution that this machine's own sources name; nothing where they name none.
#   mirror.sh debian|ubuntu
# DEBIAN_MIRROR and UBUNTU_MIRROR come first.

case $1 in
debian) mirror=${DEBIAN_MIRROR:-} ;;
*) mirror=${UBUNTU_MIRROR:-} ;;
esac
[ -z "$mirror" ] || {
    echo "$mirror"
    exit
}
cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v '^#' |
    grep -oE "https?://[^] ]+/$1/?( |\$)" | head -n 1
