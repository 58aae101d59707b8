# SPDX-License-Identifier: Apache-2.0
"""Cases that fail today: why, and a part of the failure's text.

A case of this list that passes, or that fails in another way, fails the test: whoever mends a cause
takes its cases out.
"""

FAILURES = {}
