#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests of this folder on the GPUs of this machine: those that call the public API and nothing else.
#   gpus.sh [-l] [-n] [-s SECONDS] BUILD [NAME...]
#     BUILD    a build for GPUs: its libnccl_ep.so.0
#     NAME     a line's number or its program; all lines of gpus.txt without one
#     -l       print the lines, and do not run them
#     -n       build the programs, and run none: the exit status says whether all can be built
#     -s       start no test after so many seconds [600]
# Environment:
#   NCCL_LIB     directory of libnccl.so.2 [as tools/find-cuda.sh finds it]. Up to 8 ranks share GPUs: NCCL 2.30
#   CUDART       the CUDA runtime [libcudart.so that tools/find-cuda.sh finds]
#   TEST_LIMIT   seconds of one test [60]; before the last five of them each thread prints where it is
#   TEST_OUT     directory of what the tests print [one that goes in the end]
# A test with several nodes finds the software NIC of BUILD/test/vcluster/nic (-Dvcluster=true), and is skipped
# without it. Where ranks share a GPU, one that ends a group or captures meets the kernels and the calls of all of
# them. Tests that need a GPU for each rank say NCCL_MULTI_RANK_GPU_ENABLE=0, and are skipped where there are fewer.
# Exit status: 1 if a test failed.

set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)
list='' build_only='' end=600
while getopts lns: option; do
    case $option in
    l) list=1 ;;
    n) build_only=1 ;;
    s) end=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -ge 1 ] || [ -n "$list" ] || {
    sed -n '3,/^$/s/^# \{0,1\}//p' "$0"
    exit 2
}
if [ -n "$list" ]; then
    grep -nvE '^(#|$)' "$here/gpus.txt"
    exit
fi
build=$(cd "$1" && pwd) || exit 2
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${TEST_OUT:-$work/out}
mkdir -p "$out"

cuda='' cudart='' nccl_include='' nccl_lib=''
eval "$("$tree/tools/find-cuda.sh" 2>/dev/null | grep -E '^(cuda|cudart|nccl_include|nccl_lib)=')"
nccl_lib=${NCCL_LIB:-$nccl_lib}
limit=${TEST_LIMIT:-60}
export LD_LIBRARY_PATH=$build:$nccl_lib:$cudart:$build/test/vcluster/nic${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export NCCL_NVLS_ENABLE=0 VC_DIR=$work TEST_STACKS=$((limit - 5))
export NCCL_MULTI_RANK_GPU_ENABLE=1 CUDA_DEVICE_MAX_CONNECTIONS=32 NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}
# The blocks of all ranks of a GPU must be there at once: four ranks have 128 of its SMs.
export NCCL_EP_COMM_SMS=${NCCL_EP_COMM_SMS:-16} NCCL_EP_TIMEOUT_MS=${NCCL_EP_TIMEOUT_MS:-20000}

compile() {
    cc -std=gnu11 -O1 -rdynamic -D_GNU_SOURCE -I"$tree" -I"$tree/include" -I"$tree/test" -I"$tree/plugin" \
        -I"$tree/tools" -I"$nccl_include" -I"$cuda/include" "$@"
}

# build NAME: the program, which needs no other libraries than these
build() {
    {
        cat "$common/log"
        compile "$here/$1.c" "$common"/*.o -o "$work/$1" "$build/libnccl_ep.so.0" "$nccl_lib/libnccl.so.2" \
            ${CUDART:-"$cudart"/libcudart.so.1[23]} -Wl,--allow-shlib-undefined -lm -lpthread -ldl
    } >"$out/$1.build" 2>&1
}

# The lines that run, as NUMBER PROGRAM LINE.
chosen=()
while IFS=: read -r number line; do
    program=$(sed -E 's/^([A-Z0-9_]+=[^ ]* +)*//; s/ .*//' <<<"$line")
    [ $# -gt 0 ] && [[ " $* " != *" $number "* ]] && [[ " $* " != *" $program "* ]] ||
        chosen+=("$number $program $line")
done < <(grep -nvE '^(#|$)' "$here/gpus.txt")
# What all programs have in common is compiled once.
common=$work/common
mkdir "$common"
for source in "$tree"/test/support/{bench,check,check_nccl,ht_bench,roles,shared_gpu,tape,tensor,victim,world}.c \
    "$tree"/tools/perf/oracle/*.c; do
    compile -c "$source" -o "$common/$(basename "$source" .c).o" 2>>"$common/log" &
done
wait
for program in $(printf '%s\n' "${chosen[@]}" | cut -d' ' -f2 | sort -u); do
    build "$program" &
done
wait
if [ -n "$build_only" ]; then
    for test in "${chosen[@]}"; do
        read -r _ program _ <<<"$test"
        [ -x "$work/$program" ] || { cat "$out/$program.build" && exit 1; }
    done
    exit
fi

failed=0 passed=0 skipped=0
for test in "${chosen[@]}"; do
    read -r number program line <<<"$test"
    start=$(date +%s%3N)
    log=$out/$number.txt
    if [ $SECONDS -ge "$end" ]; then
        echo "no time is left" >"$log"
        status=77
    elif [ ! -x "$work/$program" ]; then
        cp "$out/$program.build" "$log"
        status=1
    elif [[ $line == *NIC=1* ]] && [ ! -e "$build/test/vcluster/nic/libibverbs.so.1" ]; then
        echo "the build has no software NIC: -Dvcluster=true makes it" >"$log"
        status=77
    else
        read -ra words <<<"$line"
        for ((i = 0; i < ${#words[@]}; i++)); do
            [[ ${words[i]} == *=* ]] || break
        done
        words[i]=$work/$program
        timeout -k 5 "$limit" env "${words[@]}" >"$log" 2>&1 </dev/null
        status=$?
    fi
    printf '%3d status %3d, %6d ms: %s\n' "$number" $status $(($(date +%s%3N) - start)) "$line"
    case $status in
    0) passed=$((passed + 1)) ;;
    77)
        skipped=$((skipped + 1))
        tail -n 1 "$log"
        ;;
    *)
        failed=$((failed + 1))
        head -n 40 "$log"
        ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ] && [ $passed -gt 0 ]
