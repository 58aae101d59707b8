#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times builds, or settings, beside each other: one short run of ep_perf after the other, in turns.

A GPU's clock and state change from minute to minute by more than most changes of code gain. Runs in turns meet
the same machine, and the medians of their rounds can be compared.

    in_turns.py before=../old/build after=build -- -t 2 -b 1 -e 128 -f 2 -G 200
    in_turns.py auto=build few=build,NCCL_EP_OVERLAP=1 --cases cases.txt --rounds 6 --limit 500

A line of a file of cases is what stands behind `--`: variables for the environment first, options of ep_perf then.
Prints a table in Markdown. Exit status: 0 all well, 1 a run failed, was not made, or had wrong results, 2 usage.
"""
import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import ep_plot

PARTS = ('dispatch', 'combine')


class Contender:
    """A build and the variables that it gets: NAME=DIR[,VARIABLE=VALUE...]."""

    def __init__(self, text):
        self.name, _, rest = text.partition('=')
        self.build, *settings = rest.split(',')
        if not self.name or not self.build or not all('=' in s[1:] for s in settings):
            raise argparse.ArgumentTypeError('%r is not NAME=DIR[,VARIABLE=VALUE...]' % text)
        self.settings = dict(s.split('=', 1) for s in settings)


class Case:
    """Variables and options of one line, and for each contender and number of tokens what its runs took."""

    def __init__(self, text):
        words = shlex.split(text, comments=True)
        count = next((i for i, w in enumerate(words) if w.startswith('-')), len(words))
        self.settings = dict(w.split('=', 1) for w in words[:count] if '=' in w[1:])
        if len(self.settings) != count:
            raise argparse.ArgumentTypeError('%r: variables come first, then options' % text)
        self.options, self.text, self.took = words[count:], shlex.join(words), {}

    def add(self, contender, document):
        run = ep_plot.Run(contender.name, document)
        for tokens in run.tokens:
            pair = statistics.median(row['period_us'] for row in run.of(tokens))
            times = [run.time(tokens, part) for part in PARTS] + [pair]
            self.took.setdefault((tokens, contender.name), []).append(times)


def run_once(contender, case, arguments):
    """The document of one run. Raises RuntimeError with the reason if it has none, or wrong results."""
    where = 'test/vcluster' if arguments.virtual else 'tools/perf'
    program = os.path.join(os.path.abspath(contender.build), where, 'ep_perf')
    environment = {'NCCL_NVLS_ENABLE': '0', **os.environ, **contender.settings, **case.settings}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'run.json')
        try:
            done = subprocess.run([program, *case.options, '-J', path], env=environment, timeout=arguments.step,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace', check=False)
        except OSError as error:
            raise RuntimeError('%s: %s' % (program, error.strerror)) from error
        except subprocess.TimeoutExpired as error:
            raise RuntimeError('not done after %d s' % arguments.step) from error
        if done.returncode:
            said = [line for line in done.stdout.splitlines() if line.strip() and not line.startswith('#')] or ['']
            raise RuntimeError('status %d: %s' % (done.returncode, said[-1].strip()[:200]))
        with open(path, encoding='utf-8') as file:
            document = json.load(file)
    if document['wrong']:
        raise RuntimeError('%d results are wrong' % document['wrong'])
    return document


def turns(contenders, cases, rounds):
    """All runs in their order: each round begins with the contender that was second in the round before."""
    for i in range(rounds):
        first = i % len(contenders)
        for case in cases:
            for contender in contenders[first:] + contenders[:first]:
                yield contender, case


def measure(arguments, cases):
    """Makes the runs. Returns how many failed; what ends them, that time is over or a signal, is a failure, too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end, failed = time.monotonic() + arguments.limit, 0
    for contender, case in turns(arguments.contender, cases, arguments.rounds):
        if time.monotonic() > end:
            print('in_turns.py: the %d s are over' % arguments.limit, file=sys.stderr)
            return failed + 1
        try:
            case.add(contender, run_once(contender, case, arguments))
        except RuntimeError as error:
            print('in_turns.py: %s, %s: %s' % (contender.name, case.text, error), file=sys.stderr)
            failed += 1
        except KeyboardInterrupt:
            print('in_turns.py: interrupted: the table has the runs until then', file=sys.stderr)
            return failed + 1
    return failed


def rows(contenders, case):
    """The lines of a case: for each number of tokens all contenders, the pair beside the first one's."""
    for tokens in sorted({tokens for tokens, _ in case.took}):
        first = case.took.get((tokens, contenders[0].name))
        for contender in contenders:
            took = case.took.get((tokens, contender.name))
            if not took:
                continue
            middle = [statistics.median(times) for times in zip(*took)]
            pairs = [times[-1] for times in took]
            share = '%.3f' % (middle[-1] / statistics.median(times[-1] for times in first)) if first else '-'
            yield ([contender.name, tokens, len(took)] + ['%.1f' % us for us in middle] +
                   ['%.1f' % min(pairs), '%.1f' % max(pairs), share])


def parse():
    """The arguments, and the cases of the file and of what stands behind `--`."""
    ours, behind = sys.argv[1:], []
    if '--' in ours:
        at = ours.index('--')
        ours, behind = ours[:at], [shlex.join(ours[at + 1:])]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('contender', nargs='+', type=Contender, metavar='NAME=DIR[,VARIABLE=VALUE...]')
    parser.add_argument('--cases', type=argparse.FileType(encoding='utf-8'), metavar='FILE', help='a case a line')
    parser.add_argument('--rounds', type=int, default=4, metavar='N', help='runs of each contender and case [4]')
    parser.add_argument('--limit', type=float, default=500, metavar='S', help='no run begins after so many seconds [500]')
    parser.add_argument('--step', type=float, default=60, metavar='S', help='the longest that a run may take [60]')
    parser.add_argument('--virtual', action='store_true', help='the virtual cluster in place of GPUs, for trying')
    arguments = parser.parse_args(ours)
    if len({c.name for c in arguments.contender}) < len(arguments.contender):
        parser.error('two contenders have one name')
    texts = behind + (arguments.cases.read().splitlines() if arguments.cases else [])
    try:
        cases = [Case(text) for text in texts if shlex.split(text, comments=True)]
    except (argparse.ArgumentTypeError, ValueError) as error:
        parser.error(str(error))
    if not cases or arguments.rounds < 1:
        parser.error('there is nothing to run: options of ep_perf stand behind `--` or in --cases')
    return arguments, cases


def main():
    """Runs, then prints a table of each case."""
    arguments, cases = parse()
    failed = measure(arguments, cases)
    head = ['build', 'tokens', 'runs', 'dispatch', 'combine', 'pair', 'least', 'most', 'of the first']
    for case in cases:
        table = ep_plot.markdown(head, rows(arguments.contender, case))
        print('\n'.join(['`%s`, medians in us' % case.text, '', *table]))
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
