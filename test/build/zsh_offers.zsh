# SPDX-License-Identifier: Apache-2.0
# What an interactive zsh lists behind a beginning of a command line.
#   zsh -f zsh_offers.zsh DIR LINE    DIR has the files of completions
zmodload zsh/zpty
dir=$1 line=$2 said= part=
zpty shell zsh -f -i
zpty -w shell "PS1= RPS1=; COLUMNS=200; fpath=($dir \$fpath); autoload -Uz compinit; compinit -u -d $dir/dump
LISTMAX=0; bindkey '^I' list-choices; print be''gin"
zpty -r shell said '*begin*' || exit 1
zpty -w -n shell "$line"$'\t'
# It has listed all when nothing comes for a while.
for ((i = 0; i < 100; i++)); do
    sleep 0.1
    if zpty -r -t shell part; then
        said+=$part
    elif [[ $said == *$line*$'\n'* ]] && ((i > 5)); then
        break
    fi
done
zpty -d shell
print -r -- "${said##*begin}"
