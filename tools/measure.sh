#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the library on the GPUs of this machine, every result verified, and writes tables.
#
#   tools/measure.sh [OPTION...]
#     --build DIR     use what is built there; else build-measure/ is built for these GPUs. An installed measure.sh
#                     uses what is installed with it, and leaves out the step demo
#     --nccl DIR      use the libnccl.so.2 of that directory. Given again: another NCCL, which the
#                     steps that need windows take if the first has none, and which is compared in
#                     the steps other.*
#     --ranks N       ranks, a multiple of the GPUs [one per GPU]. More than GPUs: they share them as
#                     threads (NCCL 2.30), for trying: times of one kind of launch mean little then
#     --only PATTERN  only steps whose name matches the shell pattern; may be given again
#     --short         small sizes and few iterations, for trying
#     --virtual       the virtual cluster in place of GPUs; takes --build
#     --limit S       seconds for all of it [520]: what does not fit is not run, which is a failure
#     --step S        seconds for one step [60]
#     --out DIR       where the results go [measure-out]
#     --commit TEXT   what is measured [the commit of this tree]
#     --list          name the steps and end; without a GPU those of two
#
# The results are tables in Markdown, by ep_plot --table, the JSON of each step in json/, and what it printed in logs/.
# A step that fails or takes too long is named in the table, and the others still run.
# Exit status: 0 all well, 1 a step failed, 2 usage, 3 nothing could be measured.

set -u
export NCCL_NVLS_ENABLE=0 NVSHMEM_DISABLE_NVLS=1 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
top=$(cd "$(dirname "$0")/.." && pwd)
here=$(cd "$(dirname "$0")" && pwd)
installed=
[ -e "$top/meson.build" ] || installed=1

usage() {
    sed -n '3,/^$/s/^# \{0,1\}//p' "$0"
    exit "${1:-2}"
}

die() {
    echo "measure.sh: $*" >&2
    exit 3
}

# ---- processes without a launcher: measure.sh --launch N own|all GPUS COMMAND... ----

# Each process gets its rank in the variables that torchrun sets; with `own` it sees one GPU only.
launch() {
    local n=$1 visible=$2 gpus=$3 rank pids=() status=0 its
    shift 3
    for ((rank = 0; rank < n; rank++)); do
        its=("RANK=$rank" "LOCAL_RANK=$rank" "WORLD_SIZE=$n")
        [ "$visible" != own ] || its+=("CUDA_VISIBLE_DEVICES=$((rank % gpus))")
        env "${its[@]}" "$@" &
        pids+=($!)
    done
    for rank in "${!pids[@]}"; do
        wait "${pids[rank]}" || status=$?
    done
    exit "$status"
}

if [ "${1-}" = --launch ]; then
    shift
    launch "$@"
fi

# ---- options ----

build='' ranks='' short='' virtual='' limit=520 step_limit=60 out=measure-out commit='' list=''
nccls=() only=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage 0 ;;
    --short | --virtual | --list)
        declare "${1#--}=1"
        shift
        continue
        ;;
    esac
    [ $# -ge 2 ] || usage
    case $1 in
    --build) build=$2 ;;
    --nccl) nccls+=("$2") ;;
    --ranks) ranks=$2 ;;
    --only) only+=("$2") ;;
    --limit) limit=$2 ;;
    --step) step_limit=$2 ;;
    --out) out=$2 ;;
    --commit) commit=$2 ;;
    *) usage ;;
    esac
    shift 2
done
for number in ${ranks:+"$ranks"} "$limit" "$step_limit"; do
    [[ $number =~ ^[1-9][0-9]*$ ]] || usage
done
command -v python3 >/dev/null || die "it needs python3"
if [ -z "$list" ]; then
    mkdir -p "$out/logs" "$out/json" || exit 3
    out=$(cd "$out" && pwd)
    rm -f "$out"/logs/*.txt "$out"/json/*.json
    : >"$out/steps.tsv"
fi

# ---- steps ----

failed=0

# record NAME STATUS SECONDS TEXT: `ok`, `failed`, `time-out`, `not-run`, or `skipped`, which is no failure.
record() {
    printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4//[$'\t\n']/ }" >>"$out/steps.tsv"
    case $2 in ok | skipped) ;; *) failed=1 ;; esac
    printf '[%3d s] %-34s %s%s\n' $SECONDS "$1" "$2" "${4:+: $4}"
}

wanted() {
    local pattern
    [ ${#only[@]} -gt 0 ] || return 0
    for pattern in "${only[@]}"; do
        # shellcheck disable=SC2053 # it is a pattern
        [[ $1 != $pattern ]] || return 0
    done
    return 1
}

# begin NAME: false where the step is not to be run.
begin() {
    wanted "$1" || return 1
    [ -z "$list" ] || {
        echo "$1"
        return 1
    }
    [ $((limit - SECONDS)) -gt 0 ] || {
        record "$1" not-run 0 "the $limit s for all of it are over"
        return 1
    }
}

skip() {
    begin "$1" && record "$1" skipped 0 "$2"
}

# Finds the line of a log that explains a failure best.
reason() {
    local line
    line=$(grep -aE 'rror|no progress|unsupported|refused|wrong|cannot|FAILED' "$1" | grep -av '^#' | tail -n 1)
    [ -n "$line" ] || line=$(grep -av '^#' "$1" | tail -n 1)
    echo "${line:0:200}"
}

# step NAME COMMAND...: run and record. The result is the command's status.
step() {
    local name=$1 log=$out/logs/$1.txt before=$SECONDS left status
    shift
    left=$((limit - SECONDS))
    [ "$left" -le "$step_limit" ] || left=$step_limit
    printf '%s\n' "$*" >"$log"
    timeout -k 5 "$left" "$@" >>"$log" 2>&1 </dev/null
    status=$?
    before=$((SECONDS - before))
    case $status in
    0) record "$name" ok $before '' ;;
    77) record "$name" skipped $before "$(reason "$log")" ;;
    124 | 137) record "$name" time-out $before "after $left s; $(reason "$log")" ;;
    *) record "$name" failed $before "status $status; $(reason "$log")" ;;
    esac
    return $status
}

# ---- what there is ----

# The directory of a libnccl.so.2 where the loader finds none: of the toolkit, else of Python's package.
find_nccl() {
    local dir=
    [ -n "$installed" ] || dir=$("$top/tools/find-cuda.sh" | sed -n 's/^nccl_lib=//p')
    [ -e "$dir/libnccl.so.2" ] || dir=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>/dev/null)/lib
    [ -e "$dir/libnccl.so.2" ] && echo "$dir"
}

find_gpus() {
    if [ -n "$virtual" ]; then
        gpus=${ranks:-2}
        export VC_GPUS=$gpus
    else
        gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
        if [ -n "${CUDA_VISIBLE_DEVICES-}" ]; then
            gpus=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | wc -l)
        fi
    fi
    [ "$gpus" -gt 0 ] || [ -z "$list" ] || gpus=${ranks:-2} # a list needs no GPU
    [ "$gpus" -gt 0 ] || die "no GPU here; --virtual measures nothing, but shows what it does"
    [ "$gpus" -le 8 ] || gpus=8
    ranks=${ranks:-$gpus}
    [ $((ranks % gpus)) = 0 ] || die "--ranks $ranks: it takes a multiple of the $gpus GPUs"
    shared=$((ranks / gpus))
}

build_here() {
    local arch log=$out/logs/build.txt
    build=$top/build-measure
    export PATH=$top/.deps/venv/bin:$PATH
    command -v meson >/dev/null || die "there is no meson to build with: run tools/setup.sh, or name what is built by --build"
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sort -u | tr -d . | paste -sd,)
    echo "building for sm_$arch: $log"
    {
        [ -f "$build/build.ninja" ] ||
            meson setup "$build" "$top" -Dcuda=enabled -Dtests=false -Dgpu_archs="$arch"
    } >"$log" 2>&1 && ninja -C "$build" >>"$log" 2>&1 && return
    tail -n 20 "$log"
    die "it cannot be built"
}

find_programs() {
    [ -z "$virtual" ] || [ -n "$build" ] || die "--virtual takes --build"
    [ -n "$build$installed$list" ] || build_here
    [ -z "$build" ] || build=$(cd "$build" && pwd) || exit 3
    programs=$build/tools/perf
    [ -z "$installed" ] || [ -n "$build" ] || programs=$here
    [ -z "$virtual" ] || programs=$build/test/vcluster
    [ -n "$list" ] || [ -x "$programs/ep_perf" ] || die "there is no $programs/ep_perf"
    if [ -z "$virtual$list" ]; then
        export LD_LIBRARY_PATH=${build:+$build:}${LD_LIBRARY_PATH-}
        if [ ${#nccls[@]} = 0 ] && ldd "$programs/ep_perf" | grep -q 'libnccl.so.2 => not found'; then
            nccls=("$(find_nccl)")
        fi
    fi
    [ ${#nccls[@]} -gt 0 ] || nccls=('')
    nccl=${nccls[0]}
}

# Prints the commit of the sources, or of an installed library the text in its file.
name_commit() {
    local library
    if [ -z "$installed" ]; then
        git -C "$top" describe --always --dirty 2>/dev/null && return
    else
        library=$(ldd "$programs/ep_perf" | sed -n 's/.*libnccl_ep.so.0 => \(.*\) (.*/\1/p')
        LC_ALL=C grep -aoE 'Switchyard [0-9][ -~]*' "$library" 2>/dev/null && return
    fi
    echo unknown
}

describe_machine() {
    {
        echo "commit	${commit:-$(name_commit)}"
        echo "date	$(date -u +%Y-%m-%d)"
        echo "gpus	$gpus"
        echo "ranks	$ranks"
        echo "cores	$(nproc)"
        if [ -z "$virtual" ]; then
            echo "gpu	$(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c | xargs)"
            echo "driver	$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)"
        fi
    } >"$out/machine.tsv"
    [ -n "$virtual" ] || { nvidia-smi && nvidia-smi topo -m && nvidia-smi nvlink -s; } >"$out/logs/machine.txt" 2>&1
}

# ---- ep_perf ----

sizes() {
    shape=(--hidden 7168 --experts 256 --topk 8)
    ll=(-b 1 -e 256 -f 2) few=(-b 1 -e 128 -f 2) ht=(-b 512 -e 4096 -f 2) big=(-b 8192) one=(-b 4096)
    often=(-n 100 -w 10) seldom=(-n 30 -w 5) many=(-n 1000 -w 10) graph=(-G 50)
    if [ -n "$short" ]; then
        shape=(--hidden 512 --experts $((ranks * 4)) --topk 4)
        ll=(-b 1 -e 8 -f 8) few=(-b 1 -e 8 -f 8) ht=(-b 8 -e 16 -f 2) big=(-b 24) one=(-b 16)
        often=(-n 3 -w 1 --chains 1) seldom=("${often[@]}") many=("${often[@]}") graph=(-G 2)
    fi
    common=("${shape[@]}" -c 1 -T $((step_limit > 20 ? step_limit - 10 : step_limit)))
    threads=(-t "$ranks")
    if [ "$shared" -gt 1 ]; then
        threads+=(--ranks-per-gpu "$shared" --no-kernel-times)
        export NCCL_MULTI_RANK_GPU_ENABLE=1
    fi
}

# perf NAME [LAUNCHER... --] OPTION...: ep_perf with a thread per rank, or with a process per rank, which the launcher starts.
perf() {
    local name=$1 launcher=() how=("${threads[@]}") last=()
    shift
    begin "$name" || return 0
    if [[ " $* " == *' -- '* ]]; then
        while [ "$1" != -- ]; do
            launcher+=("$1")
            shift
        done
        shift
        how=(--rendezvous "file:$out/meet")
        [ "$shared" = 1 ] || last=(--no-kernel-times -n 3 -w 1 --chains 1 -e 8 -f 8) # they take turns
        rm -f "$out/meet"
    fi
    step "$name" env ${nccl:+LD_LIBRARY_PATH="$nccl:${LD_LIBRARY_PATH-}"} "${launcher[@]}" "$programs/ep_perf" "${how[@]}" \
        "${common[@]}" -J "$out/json/$name.json" "$@" "${last[@]}"
}

# The NCCL that a first short run went well with, its version, and the SMs of a rank.
start() {
    local i good=() version only=()
    for i in "${!nccls[@]}"; do
        nccl=${nccls[i]}
        perf "start.$((i + 1))" -b 8 -n 5 -w 1 --chains 1 || continue
        [ -z "$list" ] || continue
        good+=("$nccl")
        version=$(value "$out/json/start.$((i + 1)).json" versions nccl)
        all=$(($(value "$out/json/start.$((i + 1)).json" ranks 0 sms) / shared))
        [ "${version:-0}" -lt 22902 ] || [ -n "${windows+set}" ] || windows=$nccl
    done
    [ -z "$list" ] || good=("${nccls[@]}")
    [ ${#good[@]} -gt 0 ] || die "ep_perf does not run: $out/logs/start.1.txt"
    nccls=("${good[@]}")
    nccl=${nccls[0]}
    all=${all:-132}
    sms16=$((all < 16 ? all : 16))
}

# value FILE KEY...: of a JSON file, 0 if it is not there.
value() {
    python3 -c '
import json, sys
try:
    v = json.load(open(sys.argv[1]))
    for key in sys.argv[2:]:
        v = v[int(key) if isinstance(v, list) else key]
    print(v)
except (OSError, ValueError, LookupError):
    print(0)' "$@"
}

# ---- what is measured ----

# with_windows NAME OPTION...: by the NCCL that has windows.
with_windows() {
    if [ -z "${windows+set}" ] && [ -z "$list" ]; then
        skip "$1" "windows need NCCL 2.29.2"
        return
    fi
    local nccl=${windows-}
    perf "$@" --windows
}

low_latency() {
    local layout quant
    for layout in em rm; do
        for quant in none fp8; do
            perf "ll.$layout.$quant" "${ll[@]}" "${often[@]}" --layout $layout --quant $quant
            perf "ll.$layout.$quant.graph" "${ll[@]}" "${often[@]}" --layout $layout --quant $quant "${graph[@]}"
        done
    done
    for layout in em rm; do
        perf "ll.$layout.none.zipf" "${few[@]}" "${often[@]}" --layout $layout --routing zipf:1
        perf "ll.$layout.none.curve" "${one[@]/4096/128}" "${often[@]}" --layout $layout --routing curve:4
    done
    perf ll.em.none.burst "${one[@]/4096/128}" "${many[@]}" --layout em --routing burst:1,16
    with_windows ll.rm.none.graph.windows "${ll[@]}" "${often[@]}" --layout rm "${graph[@]}"
    perf ll.rm.none.many "${big[@]/8192/512}" "${often[@]}" --layout rm
}

high_throughput() {
    local layout quant sms how
    for quant in none fwd; do
        for layout in flat em; do
            how=(--mode ht --layout "$layout" --quant "$quant" "${seldom[@]}")
            for sms in $sms16 $all; do
                perf "ht.$layout.$quant.$sms" "${ht[@]}" "${how[@]}" --sms "$sms"
                with_windows "ht.$layout.$quant.$sms.windows" "${ht[@]}" "${how[@]}" --sms "$sms"
                [ "$sms16" != "$all" ] || break
            done
            perf "ht.$layout.$quant.$all.8192" "${big[@]}" "${how[@]}" --sms "$all"
            with_windows "ht.$layout.$quant.$all.8192.windows" "${big[@]}" "${how[@]}" --sms "$all"
        done
    done
    for layout in flat em; do
        how=(--mode ht --layout "$layout" "${seldom[@]}" --sms "$all")
        with_windows "ht.$layout.none.$all.graph.windows" "${ht[@]}" "${how[@]}" "${graph[@]}"
        perf "ht.$layout.none.$all.backward" "${ht[@]}" "${how[@]}" --backward
        with_windows "ht.$layout.none.$all.backward.windows" "${one[@]}" "${how[@]}" --backward
        for sms in zipf:1 curve:4; do
            perf "ht.$layout.none.$all.${sms%:*}" "${one[@]}" "${how[@]}" --routing $sms
        done
    done
}

# What memory is mapped by, and what each process sees: a process per rank.
processes() {
    local memory visible started nccl=${windows-$nccl}
    for memory in window ipc; do
        for visible in all own; do
            started=("NCCL_EP_MEMORY=$memory" "$0" --launch "$ranks" "$visible" "$gpus")
            if [ $memory = window ] && [ -z "${windows+set}" ] && [ -z "$list" ]; then
                skip "processes.$memory.$visible.ll" "windows need NCCL 2.29.2"
                continue
            fi
            perf "processes.$memory.$visible.ll" "${started[@]}" -- "${few[@]}" "${often[@]}"
            if [ "$shared" -gt 1 ]; then
                skip "processes.$memory.$visible.ht" "processes that share a GPU take turns"
                continue
            fi
            perf "processes.$memory.$visible.ht" "${started[@]}" -- "${one[@]}" "${seldom[@]}" \
                --mode ht --layout flat
        done
    done
}

# How long a group takes to make, by what the ranks are.
creation() {
    local i first=(-b 8 -n 5 -w 1 --chains 1) mpi=(mpirun --oversubscribe -np "$ranks")
    [ "$(id -u)" != 0 ] || mpi+=(--allow-run-as-root)
    for i in "${!nccls[@]}"; do
        local nccl=${nccls[i]} name=creation.$((i + 1))
        perf "$name.threads" "${first[@]}"
        perf "$name.processes" "$0" --launch "$ranks" all "$gpus" -- "${first[@]}"
        if command -v mpirun >/dev/null; then
            perf "$name.mpirun" "${mpi[@]}" -- "${first[@]}"
            perf "$name.mpirun-unbound" "${mpi[@]}" --bind-to none -- "${first[@]}"
        else
            skip "$name.mpirun" "there is no mpirun"
        fi
        if command -v torchrun >/dev/null; then
            perf "$name.torchrun" torchrun --no-python --nproc-per-node "$ranks" \
                --master-addr 127.0.0.1 --master-port $((20000 + RANDOM % 10000)) -- "${first[@]}"
        else
            skip "$name.torchrun" "there is no torchrun"
        fi
    done
}

# The same with the other NCCLs.
others() {
    local i
    for ((i = 1; i < ${#nccls[@]}; i++)); do
        local nccl=${nccls[i]}
        perf "other.$((i + 1)).ll" "${few[@]}" "${often[@]}"
        perf "other.$((i + 1)).ht" "${one[@]}" "${seldom[@]}" --mode ht --layout flat --sms "$sms16"
        [ "$shared" -gt 1 ] || perf "other.$((i + 1)).own" \
            "$0" --launch "$ranks" own "$gpus" -- "${few[@]}" "${often[@]}"
    done
}

demo() {
    begin demo || return
    if [ -n "$virtual" ]; then
        record demo skipped 0 "it is a test of its own"
        return
    fi
    if [ -n "$installed" ]; then
        record demo skipped 0 "it comes with the sources"
        return
    fi
    step demo env LD_LIBRARY_PATH="${nccls[0]:+${nccls[0]}:}$LD_LIBRARY_PATH" "$top/demo" --build "$build"
}

# ---- tables ----

failed_steps() {
    awk -F '\t' '$2 != "ok" && $2 != "skipped" { print $1 }' "$out/steps.tsv"
}

# The machine, the results of the steps that went well, and what became of each step.
write_tables() {
    local name plot=$here/ep_plot files=() status
    [ -e "$plot" ] || plot=$here/ep_plot.py
    printf '# Measured\n\n'
    sed 's/^\([^\t]*\)\t/* \1: /' "$out/machine.tsv"
    [ -z "$(failed_steps)" ] || printf '\n**Failed: %s.**\n' "$(failed_steps | paste -sd , | sed 's/,/, /g')"
    while IFS=$'\t' read -r name status _; do
        [ "$status" != ok ] || [ ! -s "$out/json/$name.json" ] || files+=("$out/json/$name.json")
    done <"$out/steps.tsv"
    echo
    if [ ${#files[@]} -gt 0 ]; then
        python3 "$plot" --table - "${files[@]}" 2>"$out/logs/tables.txt" || { cat "$out/logs/tables.txt" >&2; return 1; }
    fi
    printf '## Steps\n\n| step | result | s | |\n| --- | ---: | ---: | ---: |\n'
    awk -F '\t' -v OFS=' | ' '{ gsub(/\|/, "/"); print "| " $1, $2, $3, $4 " |" }' "$out/steps.tsv"
}

gpus=0
find_gpus
find_programs
sizes
[ -n "$list" ] || describe_machine
start
low_latency
high_throughput
creation
processes
others
demo
[ -z "$list" ] || exit 0
write_tables >"$out/tables.md" || failed=1
printf '%d steps, %d of them failed; %s/tables.md\n' "$(wc -l <"$out/steps.tsv")" "$(failed_steps | wc -l)" "$out"
exit $failed
