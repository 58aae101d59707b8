#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What bash completes of the tools' command lines, and that it is what their help lists; zsh's files where there is zsh.
#   completions.sh COMPLETIONS EP_PERF EP_INFO|none EP_PLOT EP_ROUTES

set -euo pipefail
make=$1 perf=$2 info=$3 plot=$4 routes=$5
. "$(dirname "$0")/checks.sh"

# offers 'WORDS' COMMAND WORD...: what the last word may become
offers() {
    local want=$1
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    "_$1" || fail "completing '$*' ends with status $?"
    [ "${COMPREPLY[*]}" = "$want" ] || fail "completing '$*' offers '${COMPREPLY[*]}', not '$want'"
}
# all COMMAND PROGRAM: every long option of the help
all() {
    local want
    want=$("$2" --help | sed -nE 's/^  (    )?(-.[^-]*, )?(--[a-z0-9_-]+).*/\3/p' | sort)
    COMP_WORDS=("$1" --) COMP_CWORD=1 COMPREPLY=()
    "_$1" || fail "completing '$1 --' ends with status $?"
    [ "$(printf '%s\n' "${COMPREPLY[@]}" | sort)" = "$want" ] || fail "$1: completed are ${COMPREPLY[*]}, in the help are" $want
    [ "${#COMPREPLY[@]}" -ge 5 ] || fail "$1: only ${#COMPREPLY[@]} options"
}

for tool in ep_perf ep_plot ep_routes ep_info ep_topo; do
    "$make" bash $tool >"$work/$tool" || fail "$make bash $tool ends with status $?"
    # shellcheck source=/dev/null
    . "$work/$tool"
    complete -p $tool | grep -q "_$tool" || fail "nothing completes $tool"
    "$make" zsh $tool >"$work/_$tool"
    [ "$(head -n 1 "$work/_$tool")" = "#compdef $tool" ] || fail "_$tool is nothing that zsh finds"
    if command -v zsh >/dev/null; then zsh -n "$work/_$tool" || fail "_$tool is not zsh"; fi
done
"$make" bash nothing 2>/dev/null && fail 'options of a tool that is not there'

offers '--mode' ep_perf --mo
offers 'll ht' ep_perf --mode ''
offers 'ht' ep_perf -c 1 --mode = h
offers 'em rm flat' ep_perf --layout =
offers '0 1' ep_perf -c ''
offers '' ep_perf --experts ''
touch "$work/results.json"
offers "$work/results.json" ep_perf -J "$work/results.j"
offers '--params --prometheus' ep_info --p
offers "$work/results.json" ep_topo "$work/results"
offers '--json' ep_topo --j
offers "$work/results.json" ep_plot -o "$work/results"
all ep_perf "$perf"
all ep_plot "$plot"
offers 'decode' ep_routes --forwards d
all ep_routes "$routes"
[ "$info" = none ] || all ep_info "$info"
# An interactive zsh lists them, too.
zsh_offers() {
    local line=$1 said word
    shift
    said=$(timeout 60 zsh -f "$(dirname "$0")/zsh_offers.zsh" "$work" "$line" | sed 's/\x1b\[[0-9;?]*[A-Za-z]//g') ||
        fail "zsh ends with an error behind '$line'"
    for word in "$@"; do
        grep -qE "^ *(.* )?$word( |\$)" <<<"${said//$'\r'/$'\n'}" || fail "zsh does not offer $word behind '$line': $said"
    done
}
if zsh -fc 'zmodload zsh/zpty' 2>/dev/null; then
    zsh_offers 'ep_info --p' --params --prometheus
    zsh_offers 'ep_perf --mode ' ll ht
    zsh_offers 'ep_plot --f' --fail-above
else
    echo 'zsh was not asked: there is none here, or none with zsh/zpty'
fi
exit $failed
