#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the README's own lines: installs the library, preloads it, builds the first program and runs it. Then every path of the
# installation that a page names has to be there.
#   readme.sh SOURCE_ROOT [BUILD]   BUILD and BUILD-opt take the place of build-release and /opt/switchyard

set -uo pipefail
source=$1
. "$(dirname "$0")/checks.sh"
"$source/tools/find-cuda.sh" | grep -q '^nvcc=.' || {
    echo 'skipped: no nvcc here'
    exit 77
}
cd "$source" || exit 1
export PATH=$PWD/.deps/venv/bin:$PATH
unset LD_LIBRARY_PATH LD_PRELOAD

# placed: a text with the places of this run
places=
[ $# = 1 ] || rm -rf "$2-opt"
[ $# = 1 ] || places="s|/opt/switchyard|$2-opt|g; s|build-release|$2|g; s|-o hello |-o $work/hello |; s|\./hello|$work/hello|"
placed() { sed "$places"; }

# first_lines HEADING: of a section's first block of commands, what begins it and what that goes on with
first_lines() { awk -v head="## $1" '$0 == head { on = 1 } on && /^    / { found = 1; print } found && !/^    / { exit }' README.md; }

install=$(first_lines Install | awk '{ print } !/\\$/ { exit }' | placed)
use=$(first_lines Use | placed)
preload=$(grep -o '`LD_PRELOAD=[^`]*`' README.md | tr -d '`' | placed)
if [ -z "$install" ] || [ -z "$use" ] || [ -z "$preload" ]; then
    fail "the README's lines are not where they were"
fi

bash -ec "$install" >"$work/log" 2>&1 || fail "the README's installation: $(tail -n 20 "$work/log")"
env "$preload" NCCL_EP_DEBUG=1 /bin/true 2>&1 | grep -q Switchyard || fail "$preload does not load it"
# Without a GPU the program ends with CUDA's own words: it has found all of its libraries.
said=$(bash -ec "$use" 2>&1)
[[ $said = *'all tokens are back'* || $said = *cudaGetDeviceCount* ]] || fail "the README's program: $said"
while read -r path; do
    [ -e "$(placed <<<"$path")" ] || fail "a page names $path, which is not installed"
done < <(grep -oh '/opt/switchyard/[A-Za-z0-9_./-]*' README.md doc/*.md doc/design/*.md doc/man/* examples/README.md nccl-tests-patch/README.md | sort -u)
[ $failed -ne 0 ] || echo "installed and used as the README says"
exit $failed
