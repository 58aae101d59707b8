# SPDX-License-Identifier: Apache-2.0
"""Mutants of what ep_info --live shows. Above each: the promise that it breaks."""

MUTANTS = [
    # Kernels show whom they wait for ...
    {"name": "wait_unshown", "file": "device/group/wait.h",
     "old": "\tep_wait_show(g, op, spin, site, peer);\n", "new": "", "tests": ["seen_stopped"]},
    # ... in MaskClean, too, ...
    {"name": "clean_unshown", "file": "device/group/masks.cu",
     "old": "ep_wait_show(a.g, op, *spin, EP_WAIT_CLEAN, r);", "new": "ep_wait_show(a.g, op, *spin, EP_WAIT_CLEAN, a.g.rank);",
     "tests": ["seen_stopped_clean"]},
    # ... as long as they do.
    {"name": "wait_shown_once", "file": "device/group/wait_word.h",
     "old": "age_ns >> EP_WAIT_SHOW_SHIFT & 0xffffff", "new": "0 * age_ns", "tests": ["seen_stopped"]},
    # A wait is what goes on, not what was.
    {"name": "wait_of_old", "file": "tools/ep_info_live.c",
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
    {"name": "behind_unnamed", "file": "tools/ep_info_live.c",
     "old": "group[i].board->exchange.begun < last;", "new": "false;", "tests": ["seen_stopped_grow"]},
    {"name": "absent_unnamed", "file": "tools/ep_info_live.c",
     "old": "return last && count_rank(group, n, r) < least && (!any || least > 1);", "new": "return false;",
     "tests": ["live", "seen_stopped_make"]},
    # Groups that have no number yet differ by their launchers, ...
    {"name": "launchers_joined", "file": "tools/ep_info_live.c",
     "old": "compare((uint32_t)x->parent, (uint32_t)y->parent)", "new": "0", "tests": ["live"]},
    {"name": "launcher_unknown", "file": "plugin/core/board.c",
     "old": "\tb->parent = (int32_t)getppid();\n", "new": "", "tests": ["board"]},
    # ... and of one launcher each group has its culprit.
    {"name": "groups_joined", "file": "tools/ep_info_live.c",
     "old": "\t\tmost = same > most ? same : most;\n", "new": "", "tests": ["live"]},
    # No two series are one.
    {"name": "series_twice", "file": "tools/ep_info_live.c",
     "old": "page->path + strlen(EP_SHARED_DIR \"/\" EP_BOARD_NAME)", "new": "\"\"", "tests": ["live"]},
    # A wait that stands still is shown where nothing shows that it is over, ...
    {"name": "stale_unshown", "file": "tools/ep_info_live.c",
     "old": "group[i].stale = !goes_on && ", "new": "group[i].stale = false && ", "tests": ["live"]},
    # ... as a later call does, ...
    {"name": "stale_called", "file": "tools/ep_info_live.c",
     "old": "b->seen_calls == b->calls", "new": "true", "tests": ["live"]},
    # ... a later operation of the group, ...
    {"name": "stale_step", "file": "tools/ep_info_live.c",
     "old": "ep_wait_word_step(word) == page->step", "new": "true", "tests": ["live"]},
    # ... or the timeout.
    {"name": "stale_for_ever", "file": "tools/ep_info_live.c",
     "old": "pages->now_ns - b->seen_ns < b->timeout_ns", "new": "true", "tests": ["live"]},
    {"name": "stale_unseen", "file": "plugin/ep/watch.c",
     "old": "\t\tboard->seen_ns = ep_board_now();\n", "new": "", "tests": ["group_watch"]},
    # What a page holds reaches no terminal as it is, breaks no JSON, and is all that is read.
    {"name": "page_text_raw", "file": "tools/ep_info_live.c",
     "old": "\tep_info_clean(board->failure, sizeof(board->failure));\n", "new": "", "tests": ["live"]},
    {"name": "page_host_raw", "file": "tools/ep_info_live.c",
     "old": "\t\tep_info_clean(ranks[r].host, sizeof(ranks[r].host));\n", "new": "", "tests": ["live"]},
    {"name": "page_why_raw", "file": "tools/ep_info_live.c",
     "old": "\tep_info_clean(board->exchange.what, sizeof(board->exchange.what));\n", "new": "", "tests": ["hostile_pages"]},
    {"name": "counts_text_raw", "file": "tools/ep_info_net.c",
     "old": "\tep_info_clean(counts->nic, sizeof(counts->nic));\n", "new": "", "tests": ["hostile_pages"]},
    # The manual has a word for each counter of a connection, and for each key of JSON.
    {"name": "counter_unlisted", "file": "tools/ep_info_net.c",
     "old": "OF_RECEIVER, \"flushes\"", "new": "OF_RECEIVER, \"rinses\"", "tests": ["manual"]},
    {"name": "key_unlisted", "file": "tools/ep_info_live.c",
     "old": "\"groups_at_least\"", "new": "\"groups_or_more\"", "tests": ["manual"]},
    # ... and ep_info prints each counter that is kept.
    {"name": "counter_unprinted", "file": "plugin/net/counts_file.h",
     "old": "\tuint64_t flushes;\n", "new": "\tuint64_t flushes, naps;\n", "tests": ["manual"]},
    {"name": "json_quote", "file": "topo/json.c",
     "old": "if (c == '\"' || c == '\\\\') {", "new": "if (c == '\"') {", "tests": ["live"]},
    {"name": "json_endless", "file": "tools/ep_info_live.c",
     "old": "i - from < CALLS;", "new": "i <= last;", "tests": ["live"]},
    {"name": "call_prefix", "file": "tools/ep_info_live.c",
     "old": "strncmp(name, prefix, n) == 0 ? name + n : name", "new": "name + n", "tests": ["live"]},
    # Root sees whose a page is.
    {"name": "page_user", "file": "tools/ep_info_live.c",
     "old": "if (group->user != geteuid()) {", "new": "if (false) {", "tests": ["live"]},
    # A call shows the tokens of its routing.
    {"name": "call_tokens", "file": "plugin/ep/show.c",
     "old": "\tc->tokens = call->counted ? call->counted->num_tokens : 0;\n", "new": "", "tests": ["seen_stopped"]},
    # An exchange that has ended is none.
    {"name": "exchange_unended", "file": "plugin/core/bootstrap.c",
     "old": "\tep_board_end_exchange(boot->board);\n", "new": "", "tests": ["seen_stopped_make"]},
    # The log has a wait at a tenth of the timeout ...
    {"name": "wait_unlogged", "file": "plugin/ep/watch.c",
     "old": "\t\twatch_log(g, &late);\n", "new": "\t\tif (!g) {\n\t\t\twatch_log(g, &late);\n\t\t}\n", "tests": ["seen_stopped"]},
    # ... once.
    {"name": "wait_logged_again", "file": "plugin/ep/watch.c",
     "old": "\t\twatch->logged[r] = step;\n", "new": "", "tests": ["seen_stopped"]},
    # It names each rank that is late.
    {"name": "wait_names", "file": "plugin/ep/watch.c",
     "old": "late.rank[late.count] = (uint32_t)r;", "new": "late.rank[0] = late.count ? late.rank[0] : (uint32_t)r;",
     "tests": ["group_watch"]},
    # Calls are shown.
    {"name": "call_unshown", "file": "plugin/ep/show.c",
     "old": "\t__atomic_store_n(&c->number, number, __ATOMIC_RELEASE);\n", "new": "", "tests": ["seen_stopped"]},
    # The page goes with the group.
    {"name": "page_left", "file": "plugin/ep/show.c",
     "old": "\tep_shared_file_remove(&show->file);\n", "new": "", "tests": ["seen_stopped"]},
    # NCCL_EP_LIVE=0 shows nothing.
    {"name": "page_unwanted", "file": "plugin/ep/show.c",
     "old": "\tif (!g->config.live) {", "new": "\tif (false) {", "tests": ["seen_stopped"]},
    # Pages of the dead are removed; who else has the number of their process is another one.
    {"name": "page_unswept", "file": "plugin/core/shared_file.c", "old": "\t\t(void)unlink(path);\n", "new": "\t\t(void)path;\n",
     "tests": ["shared_file"]},
    {"name": "page_of_number", "file": "plugin/core/board.c",
     "old": "started != board->started || ", "new": "", "tests": ["board"]},
    # Only its user may read a page.
    {"name": "page_public", "file": "plugin/core/shared_file.c",
     "old": "O_NOFOLLOW, 0600)", "new": "O_NOFOLLOW, 0644)", "tests": ["shared_file"]},
]

# What is announced before there is anything is what creation and calls do.
MUTANTS += [
    {"name": "feasible_handle", "file": "plugin/ep/query.c",
     "old": "\ts.handle_bytes = m.handle_bytes;\n", "new": "", "tests": ["feasible"]},
    {"name": "feasible_results", "file": "plugin/ep/query.c",
     "old": "return ep_row_check_budget(config, NULL, row->results);", "new": "return ncclSuccess;",
     "tests": ["feasible"]},
    {"name": "feasible_limit", "file": "plugin/ep/query.c",
     "old": "all <= shape->memory_bytes", "new": "all < shape->memory_bytes", "tests": ["feasible"]},
    {"name": "feasible_rows", "file": "plugin/ep/ht/ht.c",
     "old": "return shape->limit != EP_NO_LIMIT", "new": "return shape->limit == 1", "tests": ["feasible"]},
    {"name": "memory_nodes", "file": "tools/ep_info_memory.c",
     "old": "\tif (asked->ranks % shape.node_ranks) {", "new": "\tif (false) {", "tests": ["info_memory"]},
]

# Each range ends, and has its operation's bytes.
MUTANTS += [
    {"name": "range_open", "file": "plugin/ep/operation.c",
     "old": "algo->dispatch(&d, stream);\n\tep_range_end();\n", "new": "algo->dispatch(&d, stream);\n", "tests": ["nvtx"]},
    {"name": "range_bytes", "file": "plugin/ep/operation.c",
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
    {"name": "report_values", "file": "tools/ep_report.sh",
     "old": '[[ $known == *" $name "* ]]', "new": '[[ $known == *" ${name:0:5}"* ]]', "tests": ["topo-report"]},
    # ... which unknown variables of ours are not, ...
    {"name": "report_unknown", "file": "tools/ep_report.sh",
     "old": ' && $2 != "UNKNOWN"', "new": '', "tests": ["topo-report"]},
    # ... names only of those that begin like them, ...
    {"name": "report_prefix", "file": "tools/ep_report.sh", "old": "*) continue ;; esac", "new": "*) ;; esac", "tests": ["topo-report"]},
    # ... and each in one line.
    {"name": "report_lines", "file": "tools/ep_report.sh", "old": '"  $(flat "$entry")"', "new": '"  $entry"', "tests": ["topo-report"]},
    {"name": "params_lines", "file": "tools/ep_info_params.c", "old": "\t\tep_log_flatten(text);\n", "new": "", "tests": ["topo-info"]},
    # Names that another user has made do not reach the terminal as they are.
    {"name": "pid_name", "file": "tools/ep_report.sh", "old": '$(flat "$(cat "/proc/$pid/comm")")', "new": '$(cat "/proc/$pid/comm")', "tests": ["identity"]},
    {"name": "pid_path", "file": "tools/ep_report.sh", "old": 'echo "  $(flat "$path")"', "new": 'echo "  $path"', "tests": ["identity"]},
]
