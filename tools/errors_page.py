#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes nccl_ep_errors(7) from the calls in the sources by which the libraries fail or warn.

  errors_page.py SOURCE_ROOT OUT DEPFILE
"""
import re
import sys
from pathlib import Path

CODES = {"ncclUnhandledCudaError": 1, "ncclSystemError": 2, "ncclInternalError": 3, "ncclInvalidArgument": 4,
         "ncclInvalidUsage": 5, "ncclRemoteError": 6}
OTHER, WARNINGS = "Errors whose code comes from what failed", "Warnings"
CALL = re.compile(r"\b(ep_fail|EP_WARN)\(")
STRING = r'"((?:\\.|[^"\\])*)"'
HEAD = r'''.\" SPDX-License-Identifier: Apache-2.0
.TH NCCL_EP_ERRORS 7 "" "Switchyard" "NCCL EP"
.SH NAME
nccl_ep_errors \- all texts of errors and warnings
.SH DESCRIPTION
Made from the sources. Dots stand for what a line has of its own: a name, a number, a rank. Search for words
of the line that are no numbers. Each text is followed by the source that writes it, and by a star where
.I troubleshooting.md
says what to do.
'''
TAIL = r'''.SH SEE ALSO
.BR nccl_ep (7),
.BR nccl_ep_env (7),
.BR ncclEpExtGetLastError (3)
'''


def arguments(text, start):
    """The arguments of a call, from behind its parenthesis."""
    found, depth, at = [""], 0, start
    while depth >= 0:
        string = re.compile(STRING).match(text, at)
        piece = string[0] if string else text[at]
        at += len(piece)
        depth += (piece in ("(", "[", "{")) - (piece in (")", "]", "}"))
        if piece == "," and depth == 0:
            found.append("")
        elif depth >= 0:
            found[-1] += piece
    return found


def pattern(argument):
    """What a format prints, "..." for what it fills in; "" for one that is not written there."""
    words = "".join(re.findall(STRING, re.sub(r"\bPRI\w+", '"u"', argument)))
    words = re.sub(r"%(?:[-+ #0]*[\d*]*(?:\.[\d*]+)?(?:hh|h|ll|l|z|j|t)?[a-zA-Z])", "...", words.replace("%%", "\0"))
    return re.sub(r"(?:\.\.\.){2,}", "...", words.replace("\0", "%")).replace('\\"', '"').replace("\\n", " ").strip()


def collect(root, sources):
    """{section: {(text, source)}}"""
    found = {}
    for source in sources:
        text = source.read_text(encoding="utf-8")
        for call in CALL.finditer(text):
            given = arguments(text, call.end())
            code = given.pop(0).strip() if call[1] == "ep_fail" else WARNINGS
            words = pattern(given[0]) if given else ""
            if re.search(r"[a-z]{3}", words):
                section = code if code in CODES or code == WARNINGS else OTHER
                found.setdefault(section, set()).add((words, str(source.relative_to(root))))
    return found


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    return "\\&" + text if text[0] in ".'" else text


def main():
    root, out, depfile = (Path(arg) for arg in sys.argv[1:4])
    sources = sorted((root / "plugin").rglob("*.c"))
    advice = root / "doc/troubleshooting.md"
    explained = re.findall(r"^\| `(.*?)` \|", advice.read_text(encoding="utf-8").partition("## It says")[2], re.M)
    found = collect(root, sources)
    page = HEAD
    for section in [*CODES, OTHER, WARNINGS]:
        page += ".SH %s\n" % (section.upper() if section not in CODES else '"%s, code %d"' % (section, CODES[section]))
        for words, source in sorted(found.get(section, ()), key=lambda entry: entry[0].lstrip(".: %").lower()):
            star = any(re.search(r"(?<!\w)%s(?!\w)" % re.escape(quote), words) for quote in explained)
            page += ".TP\n%s\n%s%s\n" % (roff(words), roff(source), ", *" if star else "")
    out.write_text(page + TAIL, encoding="utf-8")
    depfile.write_text("%s: %s\n" % (out, " ".join(str(path) for path in [*sources, advice])), encoding="utf-8")
    return 0 if sum(map(len, found.values())) > 300 else 1


sys.exit(main())
