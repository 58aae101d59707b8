# SPDX-License-Identifier: Apache-2.0
# For scripts beside it, which source it: a directory that goes with them, and failures, of which $failed is the exit status.
# shellcheck shell=bash

export LC_ALL=C # [a-z] has no i in Turkish
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
    echo "FAILED: $*"
    failed=1
}
