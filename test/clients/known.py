# SPDX-License-Identifier: Apache-2.0
"""Cases that fail today: why, and a part of the failure's text.

A case of this list that passes, or that fails in another way, fails the test: whoever mends a cause
takes its cases out.
"""

import os

FAILURES = {
    "trtllm.nvfp4_combine": ("combine does not have the recipe NVFP4 yet",
                             "recipe NVFP4 is not available"),
}

if os.environ["WORLD_SIZE"] != os.environ["LOCAL_WORLD_SIZE"]:
    ACROSS = ("high throughput is on one node only", "high throughput mode across nodes")
    FAILURES["flashinfer.high_throughput"] = ACROSS
    FAILURES["flashinfer.high_throughput_by_expert"] = ACROSS
