#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A tree in which everything is wrong that check_tree.py looks for, to see that it says so."""

import subprocess
import sys
import tempfile
from pathlib import Path

CHECK = Path(__file__).with_name("check_tree.py")
LICENCE = "/* SPDX-License-Identifier: Apache-2.0 */\n"
FILES = {
    ".gitignore": "/build*/\n*.o\n",
    "build-old/junk.c": "never looked at\n",
    "include/api.h": LICENCE,
    "plugin/core/naked.c": "int naked;\n\n\n" + LICENCE,
    "plugin/core/climbs.c": LICENCE + '#include "gda/gda.h"\n#include "api.h"\n',
    "plugin/gda/gda.h": LICENCE + '#include "test/peek.h"\n#include "device/ll/rows.h"\n',
    "plugin/net/p2p/send.c": LICENCE + '#include "gda/gda.h"\n#include "net/base/mr.h"\n',
    "plugin/net/base/mr.h": LICENCE + '#include "net/mesh/mesh.h"\n',
    "plugin/net/mesh/mesh.h": LICENCE,
    "plugin/rdma/nic.c": LICENCE + '#include "core/gone.h"\n',
    "test/peek.h": LICENCE,
    "device/simt/simt.h": LICENCE,
    "device/group/wait.h": LICENCE + '#include "device/ll/rows.h"\n',
    "device/ll/rows.h": LICENCE + '#include "device/group/wait.h"\n#include "device/simt/simt.h"\n',
    "device/ht/ring.cu": LICENCE + '#include "device/ll/rows.h"\n// asks multimem.ld\n',
    "device/ht/rows.cu": LICENCE + '\tasm volatile("nanosleep.u32 9;");\n',
    "topo/meson.build": "# SPDX-License-Identifier: Apache-2.0\n",
    "tools/meson.build": "# SPDX-License-Identifier: Apache-2.0\n",
    "topo/fault.c": LICENCE,
    "test/fault.c": LICENCE,
    "topo/tall.c": LICENCE + "\n" * 900,
    "device/simt/simt_cuda.h": LICENCE + 'asm("multimem.st.global.u64 [%0], %1;");\n',
    "topo/pointer.c": LICENCE + "/* Fills *out from p->in and rank->at. */\nint fill(struct x *rank, int *out);\n"
                      "/* Of a->in. */\nint first(void);\nint second(struct x *a);\n",
    "topo/stale.c": LICENCE + '/* See tall.c, tall_*.c, x/tall.c, <gone.h>. */\nchar *s = "gone.c"; // gone.h\n',
    "doc/page.md": "Read `topo/tall.c` and `topo/gone.c`, not gone.c.\n",
    "doc/plain.md": "\n".join([
        "A page of short lines. Who reads it? W " + "w " * 28 + "w.", "", "* " + "w " * 31 + "w. An item.", "",
        "Who reads this is lost. " + "X" * 80, "", "All of this is said, all the same. A rank is told so.", "",
        "| a cell | " + "w " * 30 + "w. |", "", "```", "y" * 120, "```", "", "    " + "z" * 120, "",
        "[a link](" + "l" * 120 + ")", "", "A blank at the end. ", "",
        "`ep_known`, `NCCL_EP_GONE`, `call ep_gone(1)` and ep_plain.", "", "`w " + "w " * 31 + "w` is one word.", ""]),
    "doc/known.c": LICENCE + "int ep_known;\n",
    "CHANGELOG.md": "`ep_gone` is gone.\n\n## 1.2.3\n\n## 1.2.2\n",
    "meson.build": "# SPDX-License-Identifier: Apache-2.0\n  version: '1.2.5',\napi_version = '1.2.3'\n",
    "include/nccl_ep.h": LICENCE + "#define NCCL_EP_MAJOR 1\n#define NCCL_EP_MINOR 2\n#define NCCL_EP_PATCH 4\n",
    "test/data.bin": b"\0\1",
    "test/latin.txt": b"caf\xe9\n",
    "test/picture.svg": "<svg>\u00b5</svg>\n",
    "tools/perf/perf.c": LICENCE + '#include "tools/perf/oracle/rows.h"\n#include "core/climbs.h"\n',
    "tools/perf/oracle/rows.h": LICENCE + '#include "device/simt/simt.h"\n',
    "plugin/core/climbs.h": LICENCE,
    "tools/run.sh": "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n# Calls gone.py.\n",
}
EXPECTED = """
CHANGELOG.md: has the version '1.2.3', meson.build '1.2.5'
device/group/wait.h: includes device/ll/rows.h, which device/group must not know
device/group/wait: is in a circle of includes: {circle}
device/ht/ring.cu: includes device/ll/rows.h, which device/ht must not know
device/ht/ring.cu: uses NVLink multicast
device/ht/rows.cu: has instructions of its own, which belong into device/simt
doc/page.md: names topo/gone.c, which does not exist
doc/plain.md: has 104 columns in line 5, the limit is 100
doc/plain.md: has a sentence of 31 words at line 9, the limit is 30: {w}...
doc/plain.md: has a sentence of 32 words at line 3, the limit is 30: {w}...
doc/plain.md: has a tab or a trailing blank in line 19
doc/plain.md: names NCCL_EP_GONE, which no source has
doc/plain.md: names ep_gone, which no source has
include/nccl_ep.h: has the version '1.2.4', meson.build '1.2.3'
plugin/core/climbs.c: includes plugin/gda/gda.h, which plugin/core must not know
plugin/core/naked.c: has no SPDX line on top
plugin/gda/gda.h: includes test/peek.h, which plugin/gda must not know
plugin/net/base/mr.h: includes plugin/net/mesh/mesh.h, which plugin/net/base must not know
plugin/net/p2p/send.c: includes plugin/gda/gda.h, which plugin/net/p2p must not know
plugin/rdma/nic.c: includes "core/gone.h", which is not in the product
test/data.bin: is a binary file
test/latin.txt: is a binary file
tools/perf/oracle/rows.h: includes device/simt/simt.h, which tools/perf/oracle must not know
tools/perf/perf.c: includes plugin/core/climbs.h, which tools/perf must not know
tools/run.sh: names gone.py, which does not exist
topo/pointer.c: has a comment at line 2 about p, which fill has not
topo/stale.c: names gone.h, which does not exist
topo/stale.c: names tall_*.c, which does not exist
topo/stale.c: names x/tall.c, which does not exist
""".replace("{w}", "w " * 20).replace(
    "{circle}", "device/group/wait -> device/ll/rows, device/ll/rows -> device/group/wait").strip().split("\n")


def main():
    with tempfile.TemporaryDirectory() as root:
        for path, text in FILES.items():
            file = Path(root, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        run = subprocess.run([sys.executable, CHECK, root], stdout=subprocess.PIPE, text=True,
                             check=False)
    lines = run.stdout.splitlines()
    found = sorted(line[len("wrong: "):] for line in lines if line.startswith("wrong: "))
    for line in sorted(set(found) ^ set(EXPECTED)):
        print("%s: %s" % ("not expected" if line in found else "missing", line))
    good = found == EXPECTED and run.returncode == 1 and lines[-1] == "%d files, %d problems" % (
        len(FILES) - 1, len(EXPECTED))
    print(lines[-1])
    return 0 if good else 1


sys.exit(main())
