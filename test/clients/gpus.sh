#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs clients on the GPUs of this machine, which needs no network. Memory and streams are those of
# PyTorch, and so is NCCL, where Python has PyTorch.
#   gpus.sh --fetch DIR [PYTHON_VERSION]        elsewhere: the wheels to carry, for 3.12 if none is given
#   gpus.sh RANKS LIBRARY_DIR DIR [CLIENT[:SEED]...]
# DIR has wheels of the bindings, and of what else Python does not have. Python without PyTorch needs
# libcudart.so.13 and libnccl.so.2 where the loader finds them. Exit status: 1 if a client failed.

set -euo pipefail
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTHONDONTWRITEBYTECODE=1
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 2 ] || {
    sed -n '3,/^$/s/^# \{0,1\}//p' "$0"
    exit 2
}

# What PyTorch's users have besides it is not fetched.
if [ "$1" = --fetch ]; then
    mapfile -t named < <(grep -E '^nccl' "$here/wheels.txt")
    python3 -m pip download -q --no-deps --only-binary :all: --implementation cp --python-version "${3:-3.12}" \
        --platform manylinux_2_28_x86_64 -d "$2" "${named[@]}"
    du -ch "$2"/*.whl
    exit
fi

ranks=$1 library=$(cd "$2" && pwd) wheels=$3
shift 3
clients=("$@")
[ $# -gt 0 ] || mapfile -t clients < <(cd "$here" && grep -l '^main(' -- *.py | sed 's/\.py$//')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip install -q --no-index --no-deps --no-compile --target "$work/site" "$wheels"/*.whl
export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH}
if python3 -c 'import torch' 2>/dev/null; then
    export CLIENTS_TORCH=1
fi
failed=0
for client in "${clients[@]}"; do
    VC_DIR=$(mktemp -d "$work/XXXX") # where ranks find each other
    seed=()
    [[ $client != *:* ]] || seed=("${client#*:}")
    export VC_DIR
    "$here/../../tools/measure.sh" --launch "$ranks" all "$ranks" timeout 120 \
        python3 "$here/${client%:*}.py" "$library" "${seed[@]}" || {
        echo "FAILED: $client"
        failed=1
    }
done
exit $failed
