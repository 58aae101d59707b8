#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts a meson test log (one JSON object per line): passed, failed, skipped, names of the failed."""

import json
import re
import sys

passed, skipped, bad = 0, 0, []
with open(sys.argv[1], encoding="utf-8") as log:
    for line in log:
        test = json.loads(line)
        if test["result"] in ("OK", "EXPECTEDFAIL"):
            passed += 1
        elif test["result"] == "SKIP":
            skipped += 1
        else:
            bad.append("%s (%s)" % (re.split(" / |:", test["name"])[-1], test["result"]))
print("%d\t%d\t%d\t%s" % (passed, len(bad), skipped, ", ".join(bad)))
