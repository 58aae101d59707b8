# SPDX-License-Identifier: Apache-2.0
"""Imported by switchyard.pth when Python starts with SWITCHYARD=1: this process, and what it starts, run on Switchyard."""
import os
import sys

import switchyard


def choose():
    os.environ.update(switchyard.environment())
    if any(switchyard._is_ours(path, "self") for path in switchyard.mapped()):
        return
    try:
        switchyard.load()
    except OSError as error:
        # Python would report an exception here and go on, with another library.
        print("switchyard: SWITCHYARD=1, but the library does not load: %s" % error, file=sys.stderr, flush=True)
        os._exit(1)


choose()
