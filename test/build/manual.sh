#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The manual: pages without mistakes of roff, that refer to pages that exist, with examples that
# run on two ranks, and every variable of ep_info -p. nccl-net-ep(7) says of each variable of NCCL's transports
# (nccl_vars.txt) whether the plugin reads it, and is right.
#   manual.sh SOURCE_ROOT ENV_PAGE EP_INFO|none PKG_CONFIG_DIR

set -euo pipefail
root=$1 env_page=$2 ep_info=$3
export PKG_CONFIG_PATH=$4
. "$(dirname "$0")/checks.sh"

cp "$root"/doc/man/*.[1-7] "$env_page" "$work"
read -r -a flags <<<"$(pkg-config --cflags --libs nccl-ep)"
: >"$work/examples.c" >"$work/table"
for page in "$work"/*.[1-7]; do
    name=${page##*/}
    if command -v groff >/dev/null; then
        groff -man -ww -z "$page" 2>"$work/roff" && [ ! -s "$work/roff" ] || fail "$name: $(<"$work/roff")"
    fi
    while read -r other section; do
        [ -f "$work/$other.$section" ] || fail "$name refers to $other($section)"
    done < <(sed -nE 's/^\.BR ((nccl|ep_|vcrun)\w*) \(([1-7])\).*/\1 \3/p' "$page")
    grep -q '^\.SH SEE ALSO' "$page" || fail "$name has no SEE ALSO"
    case $name in
    *.3) ;;
    *) continue ;;
    esac
    # An example is the body of a function that gets a group, a handle, tensors and a stream.
    printf '\t{ "%s", example_%s },\n' "${name%.3}" "${name%.3}" >>"$work/table"
    printf '#define %s(...) expect("%s", (%s)(__VA_ARGS__))\n' "${name%.3}" "${name%.3}" "${name%.3}" >>"$work/calls"
    {
        printf 'static void example_%s(ncclComm_t comm, ncclEpGroup_t group, ncclEpHandle_t handle,' "${name%.3}"
        printf 'cudaStream_t stream, int rank, int nranks, void *memory, ncclEpTensor_t topk_idx,'
        printf 'ncclEpTensor_t topk_weights, ncclEpTensor_t x, ncclEpTensor_t y, ncclEpTensor_t rows,'
        printf 'ncclEpTensor_t counts)\n{\n#line 1 "%s"\n' "$name"
        sed -n '/^\.SH EXAMPLES/,/^\.SH [^E]/p' "$page" | sed -n '/^\.nf/,/^\.fi/{/^\./d;p}' |
            sed 's/\\-/-/g; s/\\(aq/'"'"'/g; s/\\e/\\/g; s/\\&//g' >"$work/body"
        cat "$work/body"
        printf '}\n'
    } >>"$work/examples.c"
    [ -s "$work/body" ] || fail "$name has no example"
done
{
    printf 'struct example {\n\tconst char *name;\n\t__typeof__(example_ncclEpDispatch) *run;\n};\n'
    printf 'static const struct example examples[] = {\n%s\n};\n' "$(<"$work/table")"
} >>"$work/examples.c"
cat "$work/calls" "$work/examples.c" >"$work/all" && mv "$work/all" "$work/examples.c"
if ${CC:-cc} -std=gnu11 -g -fopenmp -Wall -Wextra -Werror -Wno-unused-parameter -Wno-unused-but-set-parameter -I "$work" \
    "$root/test/build/run_examples.c" -o "$work/run_examples" "${flags[@]}" 2>"$work/errors"; then
    VC_GPUS=2 LD_LIBRARY_PATH=$PKG_CONFIG_PATH timeout 100 "$work/run_examples" >"$work/out" 2>&1 ||
        fail "an example: $(grep -a FAILED "$work/out" || tail -n 3 "$work/out")"
    [ "$(grep -c '^done: ' "$work/out")" = $((2 * $(wc -l <"$work/table"))) ] || fail 'not all examples ran'
else
    fail "examples: $(<"$work/errors")"
fi

# From ENVIRONMENT on: what is read, and behind "Not read" what is not.
sed -n '/^\.SH ENVIRONMENT/,/^\.SH FILES/p' "$root/doc/man/nccl-net-ep.7" >"$work/environment"
sed '/^\.SS Not read/,$d' "$work/environment" | grep -oE 'NCCL_\w+' | sort -u >"$work/read"
sed '1,/^\.SS Not read/d' "$work/environment" | # the names above each paragraph
    awk '/^\.TP/ { names = 1; next } names { print; names = /\\$/ }' | grep -oE 'NCCL_\w+' >"$work/unread"
[ "$(wc -l <"$work/unread")" -gt 30 ] || fail "nccl-net-ep.7 lists $(wc -l <"$work/unread") variables that are not read"
while read -r name; do
    in_sources=no
    ! grep -rqF "\"$name\"" "$root/plugin" "$root/topo" --include=*.c || in_sources=yes
    if grep -qx "$name" "$work/unread"; then
        [ $in_sources = no ] || fail "nccl-net-ep.7: $name is not read, but it is in the sources"
    else
        grep -qx "$name" "$work/read" || fail "nccl-net-ep.7 does not say whether $name is read"
        [ $in_sources = yes ] || fail "nccl-net-ep.7: $name is read, but it is not in the sources"
    fi
done <"$root/test/build/nccl_vars.txt"

if [ "$ep_info" != none ]; then
    "$ep_info" -p | sed -nE 's/^  ((NCCL|HWLOC)_\w+) .*/\1/p' >"$work/names"
    [ "$(wc -l <"$work/names")" -gt 30 ] || fail "ep_info -p lists $(wc -l <"$work/names") variables"
    while read -r name; do
        grep -q "^\.B $name\$" "$env_page" || fail "nccl_ep_env.7 lacks $name"
    done <"$work/names"
fi
exit $failed
