#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The README's commands on a machine that has nothing yet: in a bare root of a release of Debian or
# Ubuntu, made by debootstrap, with a clean clone of HEAD. Prints what each of them said last and took.
#   fresh.sh [--quick] [--dir DIR] RELEASE...   debian/bookworm, ubuntu/noble, ...
#     --quick     ./check --quick
#     --packages DIR   instead: Debian's packages of DIR, installed by apt, tried, and removed (deb_inside.sh)
#     --container      instead: the commands of tools/Containerfile, each stage in a bare root
#     --dir DIR   where bare roots are kept for the next time, and logs [.deps/fresh]
# It needs root. What this machine knows of the way to packages goes into the root: the mirror of its own
# sources (or DEBIAN_MIRROR, UBUNTU_MIRROR), apt's and pip's settings, proxies, certificates, hosts.
# Exit status: 1 if a command failed, 77 if no release could be tried.

set -uo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
script=$top/test/build/fresh.sh

# ---- inside: `fresh.sh --inside ROOT COMMAND...` has a mount and a PID namespace of its own ----

if [ "${1-}" = --inside ]; then
    root=$2
    shift 2
    set -e
    mount --bind "$root" "$root" # pivot_root asks for a mount. In a chroot there would be no user namespaces
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm"
    mkdir -p "$root/.old"
    cd "$root"
    pivot_root . .old
    umount -l /.old
    cd /root/switchyard
    exec env -i "$@"
fi

# ---- outside ----

dir=$top/.deps/fresh
check=(./check)
packages=
container=
releases=()
while [ $# -gt 0 ]; do
    case $1 in
    --quick) check+=(--quick) ;;
    --packages)
        packages=$(cd "$2" && pwd) || exit 2
        shift
        ;;
    --container) container=yes ;;
    --dir)
        dir=$2
        shift
        ;;
    -*)
        sed -n '3,/^$/s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
    *) releases+=("$1") ;;
    esac
    shift
done

none() {
    echo "skipped: $*"
    exit 77
}

[ "$(id -u)" -eq 0 ] || none "bare machines are made by root"
command -v debootstrap >/dev/null || none "no debootstrap here"
git -C "$top" rev-parse HEAD >/dev/null 2>&1 || none "this tree is no clone"
mkdir -p "$dir" && dir=$(cd "$dir" && pwd) || exit 1
trap 'rm -rf --one-file-system "$dir"/*.run "$dir"/*.part' EXIT
trap 'exit 1' INT TERM

# Ubuntu's keys, where only Debian has them: from Debian's package, as a Debian root gets it.
ubuntu_keys() {
    keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    [ ! -f $keys ] || return 0
    keys=$dir/ubuntu-archive-keyring.gpg
    [ ! -f "$keys" ] || return 0
    make_base debian/trixie && copy_base debian/trixie &&
        in_root debian/trixie sh -c 'apt-get update && apt-get download ubuntu-keyring && dpkg-deb -x *.deb .' &&
        cp "$(root_of debian/trixie)/root/switchyard/usr/share/keyrings/ubuntu-archive-keyring.gpg" "$keys"
}

base_of() { echo "$dir/${1#*/}.base"; }
root_of() { echo "$dir/${1#*/}.run"; }

# make_base SYSTEM/RELEASE: the bare root, not older than two weeks.
make_base() {
    local system=${1%/*} release=${1#*/} base keys recipe=sid parts=main
    base=$(base_of "$1")
    [ -z "$(find "$base" -maxdepth 0 -mtime -14 2>/dev/null)" ] || return 0
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    if [ "$system" = ubuntu ]; then
        ubuntu_keys || return 1
        parts=main,universe
        recipe=gutsy # debootstrap has one for all of Ubuntu's releases since
    fi
    rm -rf --one-file-system "$base"
    debootstrap --variant=minbase --components=$parts --keyring="$keys" "$release" "$base.part" "$("$top/tools/mirror.sh" "$system")" $recipe &&
        touch "$base.part" && mv "$base.part" "$base"
}

copy_base() {
    local root
    root=$(root_of "$1")
    rm -rf --one-file-system "$root"
    cp -a --reflink=auto "$(base_of "$1")" "$root" && mkdir "$root/root/switchyard" && pass_on "$root"
}

# pass_on ROOT: what leads from here to packages.
pass_on() {
    local root=$1 file
    cp -L /etc/hosts /etc/resolv.conf "$root/etc/"
    apt-config dump Acquire | grep -E '^Acquire::(https?|Check|Retries)' >"$root/etc/apt/apt.conf.d/90host"
    for file in /etc/pip.conf /root/.config/pip/pip.conf /root/.pip/pip.conf; do
        [ ! -f "$file" ] || install -D "$file" "$root$file"
    done
    # Where programs look, and where the package ca-certificates finds it when it makes that file anew.
    file=/etc/ssl/certs/ca-certificates.crt
    if [ -f $file ]; then
        install -D $file "$root$file"
        install -D $file "$root/usr/local/share/ca-certificates/host.crt"
    fi
}

# in_root SYSTEM/RELEASE COMMAND...
in_root() {
    local root passed=()
    root=$(root_of "$1")
    shift
    mapfile -t passed < <(env | grep -E '^(PIP_[A-Z_]*|[A-Za-z]*_(proxy|PROXY)|[A-Z_]*CERT[A-Z_]*|[A-Z_]*CA_BUNDLE)=')
    timeout 3600 unshare --mount --pid --fork --kill-child "$script" --inside "$root" "${passed[@]}" HOME=/root \
        LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@" </dev/null
}

# try SYSTEM/RELEASE: true if all commands end well.
try() {
    local root log=$dir/${1#*/}.log command started name status=0
    root=$(root_of "$1")
    copy_base "$1" && git clone -q --no-hardlinks "$top" "$root/root/switchyard" || return 1
    name=$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' "$root/etc/os-release")
    : >"$log"
    for command in ./demo "${check[*]}" 'test/build/readme.sh .'; do
        started=$SECONDS
        # shellcheck disable=SC2086 # it is words
        in_root "$1" $command >>"$log" 2>&1 || status=$?
        printf '%s: %s: %d s: %s\n' "$name" "$command" $((SECONDS - started)) "$(tail -n 1 "$log")"
        if [ $status -ne 0 ]; then
            tail -n 40 "$log"
            return 1
        fi
    done
}

# try_packages SYSTEM/RELEASE: the same for packages.
try_packages() {
    local root log=$dir/${1#*/}.packages.log status=0
    root=$(root_of "$1")
    copy_base "$1" || return 1
    cp "$packages"/*.deb "$top/test/build/deb_inside.sh" "$root/root/switchyard/" || return 1
    in_root "$1" ./deb_inside.sh >"$log" 2>&1 || status=$?
    printf '%s: packages: %s\n' "${1#*/}" "$(tail -n 1 "$log")"
    [ $status -eq 0 ] || tail -n 40 "$log"
    return $status
}

# stage_script FILE STAGE: what the instructions of a Containerfile's first or second stage are as a script. What is
# copied from another stage is in /root/switchyard of its root.
stage_script() {
    echo 'set -ex'
    sed -e ':a' -e '/\\$/N; s/\\\n//; ta' "$1" | awk -v stage="$2" '
        $1 == "FROM" { n++ }
        n != stage || $1 == "FROM" { next }
        $1 == "COPY" && $2 == "." { print "cp -a /root/switchyard " $3; next }
        $1 == "COPY" { print "cp -a /root/switchyard/stage " $4; next }
        $1 == "WORKDIR" { print "cd " $2; next }
        $1 == "RUN" { sub(/^RUN */, ""); print "{ " $0 "; } || exit 1"; next }
        $1 == "ENV" { sub(/^ENV */, ""); print "export " $0; next }
        NF && $1 !~ /^#/ { print "echo unknown instruction: " $1 "; exit 1" }'
}

# try_container SYSTEM/RELEASE: builds in one bare root, and runs the result in another.
try_container() {
    local root log=$dir/${1#*/}.container.log file=$top/tools/Containerfile stage started=$SECONDS
    root=$(root_of "$1")
    copy_base "$1" && rmdir "$root/root/switchyard" && git clone -q --no-hardlinks "$top" "$root/root/switchyard" &&
        stage_script "$file" 1 >"$root/root/switchyard/stage.sh" || return 1
    stage=$dir/container.part
    if in_root "$1" bash stage.sh >"$log" 2>&1; then
        rm -rf "$stage" && cp -a "$root/stage/opt/switchyard" "$stage" && copy_base "$1" &&
            cp -a "$stage" "$root/root/switchyard/stage" || return 1
        stage_script "$file" 2 >"$root/root/switchyard/stage.sh"
        printf '%s\n' 'ep_info -v >/tmp/version' 'cat /proc/self/maps >/tmp/maps' \
            'grep -q /opt/switchyard/lib/libnccl_ep.so.0 /tmp/version' \
            'grep -q /opt/switchyard/lib/libnccl_ep.so.0 /tmp/maps' >>"$root/root/switchyard/stage.sh"
        if in_root "$1" bash stage.sh >>"$log" 2>&1; then
            printf '%s: container: %d s: %s\n' "${1#*/}" $((SECONDS - started)) "$(grep -m 1 Switchyard "$root/tmp/version")"
            return 0
        fi
    fi
    tail -n 40 "$log"
    return 1
}

failed=0 tried=0
for release in "${releases[@]}"; do
    if ! make_base "$release" >"$dir/base.log" 2>&1; then
        echo "$release: skipped: no bare root: $(tail -n 1 "$dir/base.log")"
        continue
    fi
    tried=1
    if [ -n "$packages" ]; then
        try_packages "$release" || failed=1
    elif [ -n "$container" ]; then
        try_container "$release" || failed=1
    else
        try "$release" || failed=1
    fi
    rm -rf --one-file-system "$(root_of "$release")"
done
[ $tried -eq 1 ] || exit 77
exit $failed
