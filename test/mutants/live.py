# SPDX-License-Identifier: Apache-2.0
"""Mutants of what ep_info --live shows. Above each: the promise that it breaks."""

MUTANTS = [
    # Kernels show whom they wait for ...
    {"name": "wait_unshown", "file": "device/group/wait.h",
     "old": "\tep_wait_show(g, op, spin, site, peer);\n", "new": "", "tests": ["seen_stopped"]},
    # ... in MaskClean, too, ...
    {"name": "clean_unshown", "file": "device/group/clean.cu",
     "old": "ep_wait_show(a.g, op, *spin, EP_WAIT_CLEAN, r);", "new": "ep_wait_show(a.g, op, *spin, EP_WAIT_CLEAN, a.g.rank);",
     "tests": ["seen_stopped_clean"]},
    # ... as long as they do.
    {"name": "wait_shown_once", "file": "device/group/wait_word.h",
     "old": "age_ns >> EP_WAIT_SHOW_SHIFT & 0xffffff", "new": "0 * age_ns", "tests": ["seen_stopped"]},
    # A wait is what goes on, not what was.
    {"name": "wait_of_old", "file": "tools/ep_info_live_read.c",
     "old": "return word != page->before[r] ? word : 0;", "new": "return word;", "tests": ["seen_stopped"]},
    # The rank that is named is the one for which the others wait.
    {"name": "wait_of_other", "file": "device/group/wait.h",
     "old": "ep_st_relaxed_sys_u64(g.waits + peer,", "new": "ep_st_relaxed_sys_u64(g.waits + (peer + 1) % g.nranks,",
     "tests": ["seen_stopped"]},
    # A group that is being made shows in which exchange its ranks wait, from the first on ...
    {"name": "making_unshown", "file": "plugin/ep/group.c",
     "old": "\t\tboot.board = g->show.board;\n", "new": "", "tests": ["seen_stopped_make"]},
    # ... and a handle for which its memory grows.
    {"name": "growth_unshown", "file": "plugin/ep/group_heap.c",
     "old": "\tboot.board = g->show.board;\n", "new": "", "tests": ["seen_stopped_grow"]},
    # Who is behind holds the others up; if all here have come, who is not here.
    {"name": "behind_unnamed", "file": "tools/ep_info_live_read.c",
     "old": "group[i].board->exchange.begun < last;", "new": "false;", "tests": ["seen_stopped_grow"]},
    {"name": "absent_unnamed", "file": "tools/ep_info_live_read.c",
     "old": "return last && !here && !any;", "new": "return false;", "tests": ["seen_stopped_make"]},
    # An exchange that has ended is none.
    {"name": "exchange_unended", "file": "plugin/core/bootstrap.c",
     "old": "\tep_board_end_exchange(boot->board);\n", "new": "", "tests": ["seen_stopped_make"]},
    # The log has a wait at a tenth of the timeout ...
    {"name": "wait_unlogged", "file": "plugin/ep/group_watch.c",
     "old": "\t\tep_watch_log(g, &late);\n", "new": "\t\tif (!g) {\n\t\t\tep_watch_say(g, &late);\n\t\t}\n", "tests": ["seen_stopped"]},
    # ... once.
    {"name": "wait_logged_again", "file": "plugin/ep/group_watch.c",
     "old": "\t\twatch->logged[r] = step;\n", "new": "", "tests": ["seen_stopped"]},
    # Calls are shown.
    {"name": "call_unshown", "file": "plugin/ep/show.c",
     "old": "\t__atomic_store_n(&c->number, number, __ATOMIC_RELEASE);\n", "new": "", "tests": ["seen_stopped"]},
    # The page goes with the group.
    {"name": "page_left", "file": "plugin/ep/show.c",
     "old": "\tep_board_hide(show->board, show->path);\n", "new": "", "tests": ["seen_stopped"]},
    # NCCL_EP_LIVE=0 shows nothing.
    {"name": "page_unwanted", "file": "plugin/ep/show.c",
     "old": "\tif (!g->config.live) {", "new": "\tif (false) {", "tests": ["seen_stopped"]},
    # Pages of the dead are removed, those of the living stay.
    {"name": "page_unswept", "file": "plugin/core/board.c",
     "old": "ep_board_life(&head) == EP_BOARD_DEAD", "new": "false", "tests": ["board"]},
    {"name": "page_swept_early", "file": "plugin/core/board.c",
     "old": "ep_board_life(&head) == EP_BOARD_DEAD", "new": "ep_board_life(&head) != EP_BOARD_LIVES", "tests": ["board"]},
    {"name": "page_of_number", "file": "plugin/core/board.c",
     "old": "started != board->started || ", "new": "", "tests": ["board"]},
    # Only its user may read a page.
    {"name": "page_public", "file": "plugin/core/board.c",
     "old": "O_NOFOLLOW, 0600)", "new": "O_NOFOLLOW, 0644)", "tests": ["board"]},
    # A child of fork() takes nothing away.
    {"name": "page_of_parent", "file": "plugin/core/board.c",
     "old": "path[0] && board->pid == (int32_t)getpid()", "new": "path[0]", "tests": ["board"]},
]

# What is announced before there is anything is what creation and calls do.
MUTANTS += [
    {"name": "feasible_handle", "file": "plugin/ep/feasible.c",
     "old": "\ts.handle_bytes = m.handle_bytes;\n", "new": "", "tests": ["feasible"]},
    {"name": "feasible_results", "file": "plugin/ep/feasible.c",
     "old": "return ep_row_check_budget(config, NCCL_EP_DISP_QUANT_NONE, row->results);", "new": "return ncclSuccess;",
     "tests": ["feasible"]},
    {"name": "feasible_limit", "file": "plugin/ep/feasible.c",
     "old": "all <= shape->memory_bytes", "new": "all < shape->memory_bytes", "tests": ["feasible"]},
    {"name": "feasible_rows", "file": "plugin/ep/ht/ht.c",
     "old": "return shape->limit != EP_NO_LIMIT", "new": "return shape->limit == 1", "tests": ["feasible"]},
    {"name": "memory_nodes", "file": "tools/ep_info_memory.c",
     "old": "\tif (asked->ranks % shape.node_ranks) {", "new": "\tif (false) {", "tests": ["info_memory"]},
]

# Each range ends, and has its operation's bytes.
MUTANTS += [
    {"name": "range_open", "file": "plugin/ep/combine.c",
     "old": "\tep_range_end();\n", "new": "", "tests": ["nvtx"]},
    {"name": "range_bytes", "file": "plugin/ep/dispatch.c",
     "old": "(uint64_t)d.num_tokens * d.token_bytes);", "new": "d.token_bytes);", "tests": ["nvtx"]},
]

# Counts are those of the routing.
MUTANTS += [
    {"name": "rows_again", "file": "device/group/expert_rows.cu",
     "old": "s & EP_EXPERT_ROWS_AGAIN ? -1 : ", "new": "s == 0xffffffffu ? -1 : ", "tests": ["expert_rows"]},
    {"name": "rows_unrouted", "file": "device/group/expert_rows.cu",
     "old": "if (a.stamp) {", "new": "if (a.stamp && *a.stamp == a.want) {", "tests": ["expert_rows"]},
    {"name": "rows_beyond", "file": "device/group/expert_rows.cu",
     "old": "expert >= 0 && expert < a.experts", "new": "expert >= 0 && expert <= a.experts", "tests": ["expert_rows"]},
    {"name": "rows_replaced", "file": "plugin/ep/query.c",
     "old": "\tblocks = (uint32_t)ep_min_u64(blocks, EP_EXPERT_ROWS_BLOCKS);\n",
     "new": "\tblocks = (uint32_t)ep_min_u64(blocks, EP_EXPERT_ROWS_BLOCKS);\n\targs.num_tokens /= 2;\n", "tests": ["expert_rows"]},
]

# A report and --pid can go to anybody, and to a terminal.
MUTANTS += [
    # The report has values only of variables that somebody is known to read, ...
    {"name": "report_values", "file": "tools/ep_info_report.c",
     "old": "if (strncmp(entry, name, n) == 0 && !name[n]) {", "new": "if (strncmp(entry, name, 5) == 0) {", "tests": ["topo-info"]},
    # ... names only of those that begin like them, ...
    {"name": "report_prefix", "file": "tools/ep_info_report.c",
     "old": "if (strncmp(*e, begins[i], strlen(begins[i])) == 0) {", "new": "if (**e) {", "tests": ["topo-info"]},
    # ... and each in one line.
    {"name": "report_lines", "file": "tools/ep_info_report.c", "old": "\t\tep_log_flatten(text);\n", "new": "", "tests": ["topo-info"]},
    {"name": "params_lines", "file": "tools/ep_info_params.c", "old": "\t\tep_log_flatten(text);\n", "new": "", "tests": ["topo-info"]},
    # Its file is opened when there is something to write.
    {"name": "report_early", "file": "tools/ep_info.c",
     "old": "\t\trequest->report = optarg;\n",
     "new": "\t\trequest->report = optarg;\n\t\t(void)!freopen(optarg ? optarg : \"/dev/stdout\", \"w\", stdout);\n",
     "tests": ["topo-info"]},
    # Names that another user has made do not reach the terminal as they are.
    {"name": "pid_name", "file": "tools/ep_info_pid.c", "old": "\t\tep_log_flatten(name);\n", "new": "", "tests": ["identity"]},
    {"name": "pid_path", "file": "tools/ep_info_pid.c", "old": "\tep_log_flatten(mapped->path);\n", "new": "", "tests": ["identity"]},
]
