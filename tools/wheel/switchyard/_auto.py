# SPDX-License-Identifier: Apache-2.0
"""Imported by switchyard.pth when Python starts with SWITCHYARD=1: this process, and what it starts, run on Switchyard.

switchyard.pth ends the process at any exception: Python would report it and go on, with another library."""
import os

import switchyard


def choose():
    if os.environ["SWITCHYARD"] != "1":
        raise ValueError("allowed is 1, or 0 for another library")
    os.environ.update(switchyard.environment())
    if any(switchyard._is_ours(path, "self") for path in switchyard.mapped()):
        return
    try:
        switchyard.load()
    except OSError as error:
        raise OSError("the library does not load: %s" % error) from error


choose()
