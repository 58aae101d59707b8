#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The wheel: packed from a build, installed into a new virtual environment, and chosen in each of its ways; beside NVIDIA's
# bindings, where test/clients/install.sh has fetched these, which then run on it, on the virtual cluster too.
#   wheel.sh BUILD_DIR SOURCE_ROOT gpu|none CLIENTS_VENV VCLUSTER_DIR

set -euo pipefail
build=$1 source=$2 flavour=$3 clients=$4 vc=$5
if [ "$flavour" = none ]; then
    echo 'skipped: this build has no GPU library (no nvcc, or -Dcuda=disabled)'
    exit 77
fi
python3 -c 'import ensurepip, venv' 2>/dev/null || {
    echo 'skipped: this Python makes no virtual environments'
    exit 77
}
. "$(dirname "$0")/checks.sh"
unset LD_PRELOAD SWITCHYARD NCCL_EP_HOME

# says PATTERN STATUS COMMAND...: some line of its output matches, and it ends so
says() {
    local pattern=$1 want=$2 status=0
    shift 2
    "$@" >"$work/out" 2>&1 || status=$?
    [ "$status" = "$want" ] || fail "$* ended with $status, not $want: $(<"$work/out")"
    grep -Eq -e "$pattern" "$work/out" || fail "$* has no line like '$pattern': $(<"$work/out")"
}

wheel=$("$source/tools/wheel/build_wheel.sh" --from "$build" --out "$work/dist")
# The tag promises no older glibc than the files need, read here by another tool than pack.py's.
mkdir "$work/unpacked"
python3 -m zipfile -e "$wheel" "$work/unpacked"
# (objdump fails for programs that are scripts)
needs=$({ find "$work/unpacked" -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec objdump -T {} + 2>/dev/null || true; } |
    grep -oE 'GLIBC_2\.[0-9]+' | sort -t . -k 2n | tail -n 1)
case $wheel in
*"-py3-none-manylinux_2_${needs#GLIBC_2.}_x86_64.whl") ;;
*) fail "$wheel, but its files need $needs" ;;
esac
find "$work/unpacked" -type l | grep . && fail 'links in a wheel'
[ -s "$work/unpacked/switchyard/include/nccl_ep/ext.h" ] || fail 'no headers'
# Places are those of any machine.
pc=$(find "$work/unpacked" -name nccl-ep.pc)
[ "$(sed -n 's/^\(cudadir\|nccldir\)=//p' "$pc" | xargs)" = "/usr/local/cuda \${cudadir}" ] || fail "$pc: $(<"$pc")"
major=${wheel##*_cu} major=${major%%-*}
for line in "Name: switchyard-ep-cu$major" "Requires-Dist: nvidia-nccl-cu$major>=2.28; extra == 'nccl'"; do
    grep -qxF "$line" "$work"/unpacked/*.dist-info/METADATA || fail "METADATA lacks '$line'"
done
grep -q "CUDA $major\.[0-9]*; sm_.* PTX; NVIDIA driver 5[0-9][0-9] or later" "$work"/unpacked/*.dist-info/METADATA || fail 'METADATA lacks the driver'

# With libhwloc inside: auditwheel agrees with the tag, and the tools run on the wheel's own.
if command -v auditwheel >/dev/null && command -v patchelf >/dev/null; then
    repaired=$("$source/tools/wheel/build_wheel.sh" --from "$build" --out "$work/repaired" --repair 2>"$work/repair") ||
        fail "build_wheel.sh --repair: $(<"$work/repair")"
    python3 -m venv "$work/other"
    "$work/other/bin/pip" install -q --no-index --no-deps --disable-pip-version-check "$repaired" || fail 'pip does not install the repaired wheel'
    tools=$(dirname "$("$work/other/bin/python" -m switchyard --path)")/../bin
    if [ -x "$tools/ep_info" ]; then
        says "libhwloc-[0-9a-f]+\.so[0-9.]* => $work/other/" 0 ldd "$tools/ep_info"
        says 'ep_info [0-9.]+' 0 "$work/other/bin/ep_info" --version
        says 'libhwloc-[0-9a-f]+\.so' 0 ldd "$(dirname "$tools")/lib/libnccl_ep_topo.so.0"
    fi
else
    echo 'no auditwheel and patchelf here: the wheel with libhwloc inside is not tried'
fi

# The compiler for an older glibc: without it these calls need 2.34.
cat >"$work/old.c" <<'C'
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
static void *run(void *p) { return p; }
int main(void) {
    struct stat s;
    sigset_t set;
    pthread_t t;
    sigemptyset(&set);
    return pthread_sigmask(SIG_BLOCK, &set, 0) || pthread_create(&t, 0, run, 0) || pthread_join(t, 0) || stat("/", &s) ||
        fstat(0, &s) || !dlopen(0, RTLD_NOW) || fcntl(0, F_GETFD) < 0;
}
C
if python3 -c 'import ziglang' 2>/dev/null; then
    "$source/tools/wheel/zig-cc.sh" 2.28 "$work/old.c" -o "$work/old" -pthread -ldl || fail 'zig-cc.sh'
    needs=$(objdump -T "$work/old" | grep -oE 'GLIBC_2\.[0-9]+' | sort -t . -k 2n | tail -n 1)
    [ "${needs#GLIBC_2.}" -le 28 ] || fail "zig-cc.sh 2.28 makes a program that needs $needs"
    "$work/old" </dev/null || fail "a program of zig-cc.sh ends with $?"
else
    echo 'no zig here: an older glibc is not tried'
fi

python3 -m venv "$work/venv"
python=$work/venv/bin/python
"$work/venv/bin/pip" install -q --no-index --no-deps --disable-pip-version-check "$wheel" || fail 'pip does not install it'
bindings=
if [ -e "$clients/installed.txt" ]; then
    bindings=1
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    find "$clients/lib" -maxdepth 2 -name site-packages >"$site/clients.pth"
    (cd "$clients" && find . -name 'libnccl_ep*' -exec sha256sum {} +) >"$work/theirs"
fi
library=$("$python" -m switchyard --path)
[ -f "$library" ] || fail "--path says $library"
ours="Switchyard [0-9.]+, commit .*, $library$"
show='import ctypes, sys
t = ctypes.c_char_p()
ctypes.CDLL(None).ncclEpExtVersion(ctypes.byref(t))
print(t.value.decode(), *sys.argv[1:])'
says "${ours%$} one two\$" 0 "$python" -m switchyard -c "$show" one two
printf '%s\n' "$show" >"$work/program.py"
says "${ours%$} 'one two'\$|${ours%$} one two\$" 0 "$python" -m switchyard "$work/program.py" 'one two'
says "$ours" 0 "$python" -m switchyard sh -c "'$python' '$work/program.py'"
says "$ours" 0 env SWITCHYARD=1 "$python" -I "$work/program.py"
says 'undefined symbol: ncclEpExtVersion' 1 "$python" "$work/program.py"
says 'undefined symbol: ncclEpExtVersion' 1 env SWITCHYARD=0 "$python" "$work/program.py"
says "$ours" 0 bash -c "eval \"\$('$python' -m switchyard --env)\" && '$python' -S '$work/program.py'"
says "^$library\$" 0 "$python" -m switchyard --verify
says 'no such program' 127 "$python" -m switchyard no-such-program
says 'there is no option --nothing' 2 "$python" -m switchyard --nothing
says '^Switchyard [0-9.]+, commit' 0 "$python" -m switchyard --version

read -r -a flags <<<"$(pkg-config --cflags "$vc/nccl-ep.pc")"
# A process that has another one, or none, is found out.
${CC:-cc} -shared -fPIC "${flags[@]}" "$source/test/build/other_library.c" -Wl,-soname,libnccl_ep.so.0 -o "$work/libnccl_ep.so.0"
verify='import sys, switchyard; print(switchyard.verify())'
says "$work/libnccl_ep.so.0 is mapped, which is not $library" 1 env LD_PRELOAD="$work/libnccl_ep.so.0" "$python" -c "$verify"
says 'no libnccl_ep is mapped' 1 "$python" -c "$verify"
LD_PRELOAD=$work/libnccl_ep.so.0 sleep 60 &
says 'which is not' 1 "$python" -m switchyard --verify $!
kill $!
says "does not load: .*$library" 1 bash -c "mv '$library' '$library.away'; SWITCHYARD=1 '$python' -c 'print(1)'; s=\$?; mv '$library.away' '$library'; exit \$s"
# By the path that TransformerEngine takes it is the same library.
says "^$library\$" 0 "$python" -m switchyard -c "import ctypes, os
ctypes.CDLL(os.environ['NCCL_EP_HOME'] + '/${library#*/switchyard/}'[:-2])
$verify"

# C programs.
says '^200$' 0 bash -c "export PKG_CONFIG_PATH=\$(dirname '$library')/pkgconfig
printf '#include <nccl_ep.h>\n#include <stdio.h>\nint main(void) { int v; ncclEpGetVersion(&v); printf(\"%%d\\\\n\", v); }' >'$work/c.c'
flags=\$(pkg-config --define-variable=cudadir=/nowhere --cflags --libs-only-L nccl-ep)
${CC:-cc} '$work/c.c' \$flags $(pkg-config --cflags "$vc/nccl-ep.pc") -l:libnccl_ep.so.0 -o '$work/c'
LD_LIBRARY_PATH=\$(dirname '$library') '$work/c'"
[ -s "$work/venv/share/man/man7/nccl_ep.7" ] || fail 'no manual pages'
[ -s "$work/venv/share/bash-completion/completions/ep_perf" ] || fail 'no completions'
for tool in ep_perf ep_info ep_topo; do
    [ ! -x "$(dirname "$library")/../bin/$tool" ] || says "$tool [0-9.]+|needs lib" '0' "$work/venv/bin/$tool" --version
done

says '^usage: ep_plot ' 0 "$work/venv/bin/ep_plot" --help
says '^usage: ep_routes ' 0 "$work/venv/bin/ep_routes" --help
says '^ep_report --pid PID ' 0 "$work/venv/bin/ep_report" --help

if [ -n "$bindings" ]; then
    says "$library" 0 "$python" -m switchyard -c 'import nccl.ep
print(nccl.ep.get_lib_path())'
    (cd "$clients" && sha256sum -c --quiet "$work/theirs") || fail "files of NVIDIA's bindings changed"
    # The same with the library for the virtual cluster in its place: there is no GPU.
    mv "$library" "$library.gpu"
    ln -s "$vc/libnccl_ep.so.0" "$library"
    export PYTHONDONTWRITEBYTECODE=1 NCCL_NVLS_ENABLE=0 VC_CLOCK=real VC_SMS=20
    # shellcheck disable=SC2016
    says 'sglang\..*: OK' 0 env PYTHONPATH="$source/test/clients" LD_LIBRARY_PATH="$vc" "$vc/vcrun" --gpus 2 -- sh -c 'NCCL_HOSTID=node$VC_NODE SWITCHYARD=1 exec "$0" "$@"' \
        "$python" -c "$verify
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
switchyard.verify()" "$source/test/clients/sglang.py" "$vc"
    # shellcheck disable=SC2016
    says 'sglang\..*: OK' 0 env LD_LIBRARY_PATH="$vc" "$vc/vcrun" --gpus 2 -- sh -c 'NCCL_HOSTID=node$VC_NODE exec "$0" "$@"' \
        "$python" -m switchyard "$source/test/clients/sglang.py" "$vc"
    rm "$library" && mv "$library.gpu" "$library"
fi
"$work/venv/bin/pip" uninstall -q -y --disable-pip-version-check "$(basename "$wheel" | sed 's/-.*//; s/_/-/g')"
[ ! -e "$library" ] || fail 'uninstalled, the library is still there'
exit $failed
