#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs one client of the Python bindings on the virtual cluster.
#   run.sh VENV VCRUN LIBRARY_DIR NODES GPUS CLIENT [SEED]
# Exit status 77 when the bindings are not in VENV.

here=$(dirname "$0")
if ! cmp -s "$here/wheels.txt" "$1/installed.txt"; then
    echo "skipped: NVIDIA's bindings are not in $1; test/clients/install.sh $1 fetches them"
    exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
# Python has its host name from libc, which knows no virtual nodes.
exec "$2" --nodes "$4" --gpus "$5" --env LD_LIBRARY_PATH="$3" -- sh -c 'NCCL_HOSTID=node$VC_NODE exec "$0" "$@"' \
    "$1/bin/python" "$here/$6.py" "$3" ${7:+"$7"}
