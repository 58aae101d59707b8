# SPDX-License-Identifier: Apache-2.0
"""Mutants of what ranks do together on the host: making groups, growing, leaving. Above each: the promise that it breaks."""

MUTANTS = [
    # ---- a call fails on one rank ----
    # A heap that a peer may have mapped is not freed before the peer has let go of it.
    {"name": "heap_freed_early", "file": "plugin/peer/heap.c",
     "old": "\tif (e && known) {",
     "new": "\tif (e && known && e->window) {", "tests": ["nth_call_each", "nth_call_ipc_each"]},
    # A heap is not unmapped while a copy to it goes on that could not be waited for.
    {"name": "unmapped_early", "file": "plugin/peer/heap.c",
     "old": "\t\t\t\tbytes, cudaMemcpyDefault, heap->entry->stream),",
     "new": "\t\t\t\tbytes, cudaMemcpyDefault, from->entry->stream),", "tests": ["nth_wait"]},
    # No rank takes the old heap away before all have filled the new one.
    {"name": "growth_alone", "file": "plugin/ep/group_heap.c",
     "old": ("\t\tresult = ep_boot_agree(&boot, group_keep_rounds(g, &grown, &heap),\n"
             "\t\t\t\t       \"replacing the group's memory\");"),
     "new": "\t\tresult = group_keep_rounds(g, &grown, &heap);", "tests": ["nth_call_each"]},
    # A rank that cannot register its memory with NCCL says so before the others wait there.
    {"name": "window_alone", "file": "plugin/peer/window.c",
     "old": "\tresult = ep_boot_agree(boot, result, \"registering the group's memory with NCCL\");\n",
     "new": "", "tests": ["nth_call_window_each"]},
    # The same for NCCL's multicast address.
    {"name": "multicast_alone", "file": "plugin/peer/multicast.c",
     "old": "\tmine = ep_boot_agree(boot, mine, \"mapping the group's memory\");\n", "new": "",
     "tests": ["nth_call_nvls_each"]},
    # A wrong argument of one rank where the heap has to grow is the failure of all.
    {"name": "create_alone", "file": "plugin/ep/handle.c",
     "old": "\tif (mine == ncclSuccess && !out) {", "new": "\tEP_CHECK(mine);\n\tif (!out) {", "tests": ["mismatch"]},
    # ... but a rank that names not all of them may be in any.
    {"name": "heaps_unnamed", "file": "plugin/peer/leave.c",
     "old": "\tif (alive->count > EP_HEAP_TEAMS) {", "new": "\tif (false) {", "tests": ["leave_many"]},
    # A thread that cannot start is no busy GPU.
    {"name": "thread_busy", "file": "plugin/ep/kernel.c",
     "old": "\tif (error == ETIMEDOUT) {", "new": "\tif (error) {", "tests": ["nth_thread"]},
    # Who cannot ask whether all have let go of a heap keeps it.
    {"name": "kept_unasked", "file": "plugin/peer/leave.c",
     "old": "return lost ? -1 : entry->rank;", "new": "(void)lost;\n\t\treturn -1;", "tests": ["nth_kept"]},
    # Who looks only once asks then which ranks have ended.
    {"name": "heap_unasked", "file": "plugin/peer/leave.c",
     "old": "\te->asked_ns = 0;", "new": "", "tests": ["leave_reaped_ipc"]},
    # What a collective holds up comes back when it has ended.
    {"name": "stuck_forgotten", "file": "plugin/ep/remains.c",
     "old": "\tif (remains_start(&r)) {\n\t\treturn;",
     "new": "\tif (true) {\n\t\treturn;", "tests": ["nth_call_each"]},
    # ... also where the thread for that can only be had later.
    {"name": "stuck_threadless", "file": "plugin/ep/group.c",
     "old": "\tep_group_give_up_again();\n", "new": "", "tests": ["nth_call_each"]},
    # A rank that never mapped a heap, and so could write no farewell there, says so with its next group.
    {"name": "heaps_unheard", "file": "plugin/ep/group.c",
     "old": "\t\tep_heap_let_go(&all[r].ident, &all[r].heaps);\n", "new": "", "tests": ["nth_call_ipc_each"]},
    # ... also where it has other groups.
    {"name": "heaps_of_others", "file": "plugin/peer/leave.c",
     "old": "\tif (alive->count > EP_HEAP_TEAMS) {", "new": "\tif (alive->count) {", "tests": ["nth_beside"]},
    # Ranks whose long lists of nodes differ at the front do not agree.
    {"name": "lists_alike", "file": "plugin/core/param.c",
     "old": "list->count <= PARAM_LIST_PLAIN ?", "new": "list->count ?", "tests": ["params"]},
    # No node has all ranks where some are remote.
    {"name": "node_of_all", "file": "plugin/ep/query.c",
     "old": "largest = n - (most->remote != 0);", "new": "largest = n;", "tests": ["group_config"]},
    # Ranks with different builds of the library make no group.
    {"name": "builds_mixed", "file": "plugin/ep/group.c",
     "old": "if (all[r].ident.build != all[0].ident.build ||", "new": "if (false ||", "tests": ["builds"]},
    # A call that is refused for its stream has not changed the mask.
    {"name": "mask_elsewhere", "file": "plugin/ep/mask.c",
     "old": "\tEP_CHECK(ep_stream_check_device(stream, \"ncclEpMaskUpdate\"));\n", "new": "", "tests": ["proto/misuse"]},
    # What ncclEpGetAsyncError refuses is the group's last error.
    {"name": "async_unrecorded", "file": "plugin/ep/call.c",
     "old": "\tep_error_scope(&group->errors);\n\tif (!group->config.enable_mask) {",
     "new": "\tif (!group->config.enable_mask) {", "tests": ["misuse_calls"]},
    # A process without /proc is not taken for one that has ended.
    {"name": "gone_unknown", "file": "plugin/core/ident.c",
     "old": "\t\tident->pid_ns = 0;", "new": "\t\t;", "tests": ["ident"]},
    # The lock of a shared file shows whether its process lives.
    {"name": "shared_unlocked", "file": "plugin/core/shared_file.c",
     "old": "flock(file->fd, LOCK_EX | LOCK_NB) != 0 || fstat", "new": "fstat", "tests": ["shared_file"]},
    # To write to a shared file is no bus error where /dev/shm is full.
    {"name": "shared_sparse", "file": "plugin/core/shared_file.c",
     "old": "error = posix_fallocate(fd, (off_t)at, (off_t)bytes);",
     "new": "error = ftruncate(fd, (off_t)(at + bytes));", "tests": ["shared_file"]},
    # Root removes no other user's file.
    {"name": "shared_owner", "file": "plugin/core/shared_file.c",
     "old": "fd >= 0 && st->st_uid == geteuid() && flock", "new": "fd >= 0 && flock", "tests": ["shared_file"]},
    # A file that was taken away before it was locked is made again.
    {"name": "shared_taken", "file": "plugin/core/shared_file.c",
     "old": "error = st.st_nlink ? 0 : EAGAIN;", "new": "error = 0;", "tests": ["shared_file"]},
    # ... and so is one that somebody looked at then.
    {"name": "shared_looked_at", "file": "plugin/core/shared_file.c",
     "old": "i < EP_SHARED_TRIES && error", "new": "i < 1 && error", "tests": ["shared_file"]},
    # Who looks is not in the way of who removes, nor the other way round.
    {"name": "shared_alone", "file": "plugin/core/shared_file.c",
     "old": "geteuid() && flock(fd, LOCK_SH | LOCK_NB)", "new": "geteuid() && flock(fd, LOCK_EX | LOCK_NB)",
     "tests": ["shared_file"]},
    # A user reads its own files alone.
    {"name": "shared_anybody", "file": "plugin/core/shared_file.c",
     "old": "(st.st_uid == geteuid() || geteuid() == 0)", "new": "true", "tests": ["shared_file"]},
    # A child of fork() leaves its parent's file alone.
    {"name": "shared_fork", "file": "plugin/core/shared_file.c",
     "old": "\tif (file->pid == getpid()) {", "new": "\tif (true) {", "tests": ["shared_file"]},
    # Entries of the plugin's counters have memory before they are used.
    {"name": "counts_room", "file": "plugin/net/p2p_counts.c",
     "old": "error = ep_shared_file_grow(&counted.shared, counts_bytes(entries));", "new": "error = 0;",
     "tests": ["counts_room_some"]},
    # A process that can open no file does not take its peers for dead.
    {"name": "gone_unread", "file": "plugin/core/ident.c",
     "old": "return !exhausted(errno) && access", "new": "return access", "tests": ["ident"]},
    # The library's threads go on when a program has closed the library.
    {"name": "unloaded", "file": "meson.build",
     "old": " '-Wl,-z,nodelete',\n", "new": "\n", "tests": ["unload", "library_vcluster"]},
    # What ranks must agree in to make a group is compared.
    {"name": "agreed_drop", "file": "plugin/ep/group_config.c",
     "old": "\tFIELD(c->drop, ", "new": "\tFIELD(0, ", "tests": ["unit/agreement", "mismatch"]},
    # GPUs of which one is a MIG instance are refused by name.
    # Host memory: rows as lines tear there, whoever wants them; and GPUs need no access to each other.
    {"name": "host_lines", "file": "plugin/peer/mapping.c",
     "old": "bool all = hidden && !mapping->in_host;", "new": "bool all = hidden != NULL;",
     "tests": ["mappings"]},
    {"name": "host_lines_forced", "file": "plugin/ep/group.c",
     "old": "g->config.lines_choice == 1 && !mapping->in_host;", "new": "g->config.lines_choice == 1;",
     "tests": ["mappings_in_host"]},
    {"name": "host_sms", "file": "plugin/ep/group.c",
     "old": "\t\tep_group_config_spare_bus(&g->config);\n", "new": "", "tests": ["mappings_in_host"]},
    # ... unless the program has chosen, for cuts of rows, too.
    {"name": "host_sms_program", "file": "plugin/ep/group_config.c",
     "old": "return budget->automatic ? (uint32_t)ep_min_u64(budget->sms, EP_HOST_SMS) : budget->sms;",
     "new": "return (uint32_t)ep_min_u64(budget->sms, EP_HOST_SMS);", "tests": ["mappings_in_host"]},
    {"name": "host_sms_least", "file": "plugin/ep/group.c",
     "old": "in_host ? t->host_sms[i] : t->sms[i]", "new": "t->sms[i]", "tests": ["mappings_in_host"]},
    {"name": "host_access", "file": "plugin/peer/mapping.c",
     "old": "r < nranks && !mapping->in_host; r++", "new": "r < nranks; r++", "tests": ["mappings_in_host"]},
    {"name": "host_within", "file": "plugin/peer/host.c",
     "old": "\t.within = &peer_host_within,\n", "new": "",
     "tests": ["mappings_in_host_threads"]},
    {"name": "host_nodes", "file": "plugin/peer/mapping.c",
     "old": "return kind != EP_KIND_HOST || *nodes == 1 ||", "new": "return true ||",
     "tests": ["mappings_in_host"]},
    {"name": "host_unasked", "file": "plugin/peer/mapping.c",
     "old": " || (kind == EP_KIND_HOST && !host_asked(offers))", "new": "", "tests": ["mappings_apart_hidden"]},
    # Its descriptor and its pages go with the heap.
    {"name": "host_descriptor", "file": "plugin/peer/host.c",
     "old": "\t\tif (h->fd >= 0) {\n", "new": "\t\tif (false) {\n", "tests": ["replace_ll_host"]},
    {"name": "mig_tried", "file": "plugin/peer/mapping.c",
     "old": "if (self->mig || peer->mig) {", "new": "if (self->mig && peer->mig) {", "tests": ["mappings_mig"]},
    # ---- halves that are captured ----
    # What was only captured holds up no call outside of its capture.
    {"name": "captured_counts", "file": "plugin/ep/halves.c",
     "old": "return handle->pending && !handle->sent_capture && !handle->received_capture;",
     "new": "return handle->pending;", "tests": ["given_up"]},
    # Inside of a capture the limits hold.
    {"name": "captured_unlimited", "file": "plugin/ep/halves.c",
     "old": "\t\tn += h->pending && h->sent_capture == capture;\n", "new": "", "tests": ["given_up", "nodes_given_up"]},
    # ncclEpComplete behind a captured half launches nothing that the device would refuse.
    {"name": "complete_blind", "file": "plugin/ep/halves.c",
     "old": "\t\tif (!pends) {", "new": "\t\tif (false) {", "tests": ["given_up"]},
    # ... nor does it take what a graph has sent for received.
    {"name": "complete_deaf", "file": "plugin/ep/halves.c",
     "old": "\t\tif (!pends) {", "new": "\t\tif (true) {", "tests": ["given_up"]},
    # A receive half whose capture was given up can be made again.
    {"name": "received_once", "file": "plugin/ep/halves.c",
     "old": "\thandle->received_capture = capture;\n",
     "new": "\thandle->received_capture = capture;\n\thandle->pending = EP_PENDING_NONE;\n", "tests": ["given_up"]},
    # A send half in a capture is not completed there by what the handle did outside of it.
    {"name": "pushed_out", "file": "plugin/ep/halves.c",
     "old": "\t\thandle->lost_capture = handle->sent_capture;\n",
     "new": "\t\thandle->lost_capture = 0;\n", "tests": ["given_up"]},
    # The heap is not replaced under what a graph has sent,
    {"name": "growth_sent", "file": "plugin/ep/group_heap.c",
     "old": "\tEP_CHECK(ep_halves_check_device(g, topk));\n", "new": "", "tests": ["given_up"]},
    # ... and what was captured for the old heap does not run on it.
    {"name": "growth_kept", "file": "plugin/ep/group_heap.c",
     "old": "\t\tep_halves_forget(h);", "new": "\t\t(void)h;", "tests": ["given_up"]},
]

# The wheel's variable has two values, and whatever else is wrong there ends the program.
MUTANTS += [
    {"name": "wheel_value", "file": "tools/wheel/switchyard/_auto.py",
     "old": '!= "1":', "new": '== "0":', "tests": ["switchyard"]},
    {"name": "wheel_goes_on", "file": "tools/wheel/switchyard.pth",
     "old": "os._exit(1)", "new": "pass", "tests": ["switchyard"]},
    {"name": "wheel_blank", "file": "tools/wheel/switchyard/__init__.py",
     "old": 'if " " in LIBRARY or', "new": "if", "tests": ["switchyard"]},
]

# The status of ep_perf says what has not worked.
MUTANTS += [
    {"name": "perf_skips_refusal", "file": "tools/perf/buffers.c",
     "old": "\trank->refused = true;\n", "new": "", "tests": ["ep_perf"]},
    # A rank that dies is named before rows are judged that it could not send.
    {"name": "perf_lost_is_wrong", "file": "tools/perf/check.c",
     "old": "\tPERF_CUDA(rank, cudaStreamSynchronize(rank->stream));\n\tperf_expect_no_failure(rank);\n",
     "new": "\tPERF_CUDA(rank, cudaStreamSynchronize(rank->stream));\n", "tests": ["ep_perf"]},
    {"name": "perf_disk_full", "file": "tools/perf/ep_perf.c",
     "old": "perf->refused || perf->unwritten", "new": "perf->refused", "tests": ["ep_perf"]},
    # What does not fit is refused, and what is refused is named.
    {"name": "option_wraps", "file": "tools/options.c",
     "old": "\t\terrno = number > UINT64_MAX / 1024 ? ERANGE : errno;\n", "new": "", "tests": ["ep_perf"]},
    {"name": "range_wraps", "file": "tools/options.c",
     "old": '"%9u:%9u%c"', "new": '"%u:%u%c"', "tests": ["ep_perf", "info_memory"]},
    {"name": "letter_unnamed", "file": "tools/options.c",
     "old": "if (optopt && optopt < 256) {", "new": 'if (optopt && strncmp(argument, "--", 2)) {', "tests": ["ep_perf"]},
    # Workloads have the loads that their names promise.
    {"name": "perf_rotates_never", "file": "tools/perf/oracle/routing.c",
     "old": "problem->step % holders_of(problem)", "new": "0 % holders_of(problem)", "tests": ["oracle"]},
    {"name": "perf_bursts_never", "file": "tools/perf/oracle/routing.c",
     "old": "== problem->routing.count - 1", "new": "== problem->routing.count", "tests": ["oracle"]},
    {"name": "perf_empty_chosen", "file": "tools/perf/oracle/routing.c",
     "old": "draw_among(problem, stream, busy_experts(problem), ids);",
     "new": "draw_among(problem, stream, problem->experts, ids);", "tests": ["oracle"]},
    # Iterations take the steps in turns.
    {"name": "perf_one_step", "file": "tools/perf/calls.c",
     "old": "iteration % opt->steps * rank->buf.step_bytes", "new": "0 * rank->buf.step_bytes",
     "tests": ["ep_perf_workloads"]},
    # Of a thousand iterations one is slower than p99.9.
    {"name": "perf_tail_rounded", "file": "tools/perf/timing.c",
     "old": "ceil(percent * count / 100 - 1e-6)", "new": "ceil(percent / 100 * count)",
     "tests": ["ep_perf_workloads"]},
    # With -C 1 the tail is that of calls.
    {"name": "perf_tail_of_events", "file": "tools/perf/report.c",
     "old": "\t\tconst struct perf_op_row *o = whose(opt, row, op);", "new": "\t\tconst struct perf_op_row *o = &row->op[op];",
     "tests": ["ep_perf_workloads"]},
    # ---- calls beside other calls ----
    # What a thread has found in the set of live objects ends with any change to it.
    {"name": "registry_keeps_gone", "file": "plugin/core/registry.c",
     "old": "registry_compare);\n\t\tregistry_changed();", "new": "registry_compare);", "tests": ["registry"]},
    {"name": "registry_keeps_absent", "file": "plugin/core/registry.c",
     "old": "registry_compare) != NULL;\n\tregistry_changed();", "new": "registry_compare) != NULL;", "tests": ["registry"]},
    {"name": "registry_keeps_making", "file": "plugin/core/registry.c",
     "old": "\t\tentry->kind = kind;\n\t\tregistry_changed();", "new": "\t\tentry->kind = kind;", "tests": ["registry"]},
    # A child of fork() waits for no thread that it lacks.
    {"name": "forked_gate", "file": "plugin/ep/call.c",
     "old": "\tEP_CHECK(call_check_group(group));\n\tpthread_mutex_lock(&call_gate);",
     "new": "\tpthread_mutex_lock(&call_gate);", "tests": ["leave_forked"]},
    # A child of fork() has a number of its own.
    {"name": "forked_number", "file": "plugin/core/process.c",
     "old": "page != MAP_FAILED && madvise(page, bytes, MADV_WIPEONFORK)", "new": "page == MAP_FAILED && true",
     "tests": ["ident", "leave_forked"]},
    # A call makes no system call, and nothing of it depends on the number of tokens.
    {"name": "call_asks_system", "file": "plugin/ep/call.c",
     "old": "\tint self = ep_process_self();\n", "new": "\textern int getpid(void);\n\tint self = getpid();\n",
     "tests": ["host_cost"]},
    {"name": "call_by_tokens", "file": "plugin/ep/operation.c",
     "old": "\tEP_CHECK(dispatch_check(&d, stream));\n",
     "new": "\tEP_CHECK(dispatch_check(&d, stream));\n"
            "\tfor (volatile uint32_t i = 0; i < d.num_tokens; i++) {\n\t}\n",
     "tests": ["host_cost"]},
    {"name": "call_plan_walks", "file": "plugin/ep/ht/ht_plan.c",
     "old": "\tuint32_t n = op->device.shared_bytes / (warps * part);\n",
     "new": "\tuint32_t n = EP_HT_MAX_STAGE_PARTS + 0 * part;\n", "tests": ["host_cost"]},
    # A call on the group from its own alloc_fn is refused, and waits for nothing.
    {"name": "entered_twice", "file": "plugin/ep/group.c",
     "old": "PTHREAD_MUTEX_ERRORCHECK", "new": "PTHREAD_MUTEX_NORMAL", "tests": ["group_life"]},
    # ... whose errors are not the group's, while what the outer call finds afterwards is.
    {"name": "entered_scope", "file": "plugin/ep/alloc.c",
     "old": "\tep_error_scope(call->scope);\n", "new": "", "tests": ["group_life"]},
    # A group whose destruction could not begin can be destroyed.
    {"name": "claimed_forever", "file": "plugin/ep/call.c",
     "old": "\tif (result != ncclSuccess) {\n\t\tep_call_stay(group);\n\t}\n", "new": "", "tests": ["group_life"]},
    # With masks, too, the group's last error names who was lost.
    {"name": "masked_unsaid", "file": "plugin/ep/record.c",
     "old": "\t(void)ep_fail(\n\t\tncclRemoteError,\n\t\t\"%s %u: rank %d waited for rank %u (timeout %llu ms): %s",
     "new": "\tEP_WARN(\n\t\t\"%s %u: rank %d waited for rank %u (timeout %llu ms): %s", "tests": ["masks"]},
    # Pages have the limits of the library, the defaults of its variables, and the codes that its calls return.
    {"name": "limit_unwritten", "file": "plugin/ep/group_config.c", "old": "c->max_token_bytes > 1u << 24) {",
     "new": "c->max_token_bytes > 1u << 23) {", "tests": ["pages"]},
    {"name": "default_unwritten", "file": "plugin/core/param.c", "old": "\"NCCL_EP_CLOSE_TIMEOUT_MS\", 10000, 0,",
     "new": "\"NCCL_EP_CLOSE_TIMEOUT_MS\", 20000, 0,", "tests": ["pages"]},
    {"name": "code_unwritten", "file": "plugin/ep/query.c", "old": "ep_fail(ncclSystemError, \"ncclEpExtDeviceMemory: out of",
     "new": "ep_fail(ncclRemoteError, \"ncclEpExtDeviceMemory: out of", "tests": ["returns"]},
    {"name": "page_class_of_codes", "file": "include/nccl_ep/ext.h",
     "old": "or the codes of calls on a group.", "new": "or the codes of calls on a working group.", "tests": ["returns"]},
    # A call that a graph cannot hold is refused while its stream is captured.
    {"name": "stats_captured", "file": "plugin/ep/query.c",
     "old": "\tEP_CHECK(ep_stream_check_capture(stream, \"ncclEpExtPeerStats\"));\n", "new": "", "tests": ["proto/captures"]},
    # The caller's current device is the same behind a call.
    {"name": "device_left", "file": "plugin/ep/call.c",
     "old": "\tif (call->device >= 0 && cudaSetDevice(call->device) != cudaSuccess) {\n\t\t(void)cudaGetLastError();\n\t}\n\tep_show_end",
     "new": "\tep_show_end", "tests": ["proto/misuse"]},
    # A stream of another device is refused by name.
    {"name": "stream_elsewhere", "file": "plugin/ep/kernel.c",
     "old": "device < 0 || device == current", "new": "device < 1000", "tests": ["proto/misuse"]},
    # A window's offset near 2^64 does not begin again at the window's start.
    {"name": "window_wraps", "file": "plugin/ep/tensor.c",
     "old": "\treturn last < tensor->win_offset ||\n\t       (", "new": "\treturn (", "tests": ["proto/misuse"]},
    # Scales lie at multiples of 4 bytes: words of them are stored at once, and global scales are read whole.
    {"name": "scales_out_askew", "file": "plugin/ep/operation.c",
     "old": "\tEP_CHECK(ep_view_expect_align(out, 4, \"outputs->scales\"));\n", "new": "", "tests": ["proto/misuse"]},
    {"name": "scale_global_askew", "file": "plugin/ep/operation.c",
     "old": "\t\tEP_CHECK(ep_view_expect_align(&dispatch->scales, 4, \"inputs->scales\"));\n", "new": "",
     "tests": ["proto/misuse"]},
    {"name": "scales_row_askew", "file": "plugin/ep/operation.c",
     "old": "\treturn ep_view_expect_align(&c->scales, 4, \"inputs->scales\");\n", "new": "\treturn ncclSuccess;\n",
     "tests": ["proto/misuse"]},
    # A recipe whose scales are powers of two in any case is not asked to round them.
    {"name": "round_ignored", "file": "plugin/ep/operation.c",
     "old": "if (dispatch->config.round_scales && made && recipe", "new": "if (0 && recipe", "tests": ["proto/misuse"]},
    # A config's size alone says which version it is of.
    {"name": "version_examined", "file": "plugin/ep/group_config.c",
     "old": "out->api = c->size < NCCL_EP_GROUP_CONFIG_V2_SIZE   ? 1",
     "new": "out->api = c->size < NCCL_EP_GROUP_CONFIG_V2_SIZE || c->version < 2 ? 1", "tests": ["ht_config"]},
    # Combine reads no rows that its tensors lack, ...
    {"name": "combine_short", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\t\ta->c.given_rows = (uint32_t)ep_min_u64(rows, EP_HT_NONE);\n\t\treturn ncclSuccess;",
     "new": "\t\ta->c.given_rows = EP_HT_NONE;\n\t\treturn ncclSuccess;", "tests": ["ht_misuse"]},
    # ... nor weights.
    {"name": "combine_short_weights", "file": "plugin/ep/ht/ht_launch.c",
     "old": "ep_min_u64(ep_min_u64(rows, in.sizes[0]), EP_HT_NONE);", "new": "ep_min_u64(rows, EP_HT_NONE);",
     "tests": ["ht_misuse"]},
    # A handle of too large a top-k is refused by one rank alone, without the others.
    {"name": "growth_ht", "file": "plugin/ep/group_heap.c",
     "old": "if (topk <= g->heap.topk || !g->config.algo->limits.grows) {", "new": "if (topk <= g->heap.topk) {",
     "tests": ["ht_misuse"]},
    # Nor does it wait for them where no memory would be large enough.
    {"name": "growth_in_vain", "file": "plugin/ep/group_heap.c",
     "old": "ep_min_u64(most, limits->max_selections / config->shape.max_tokens)", "new": "most", "tests": ["memory"]},
    # Those who stay map memory that grows as newcomers do.
    {"name": "join_mappings", "file": "plugin/ep/replace.c",
     "old": "\tg->memory.next = NULL;        /*", "new": "\t/*", "tests": ["join"]},
    # Memory that could not grow is mapped as before.
    {"name": "growth_mapping", "file": "plugin/ep/group_heap.c",
     "old": "ep_heap_open(&grown, &boot, g->idents, &memory,", "new": "ep_heap_open(&grown, &boot, g->idents, &g->memory,",
     "tests": ["join"]},
    # A routing of a handle that was destroyed is not the next handle's.
    {"name": "routing_inherited", "file": "plugin/ep/ht/ht.c",
     "old": "handle->mem_owned ? handle->secret : 0", "new": "0", "tests": ["ht_misuse"]},
    # Arrivals of a capture that was abandoned are no other dispatch's.
    {"name": "arrivals_abandoned", "file": "plugin/ep/ht/ht_launch.c",
     "old": "ht->captured.head && ht->arrivals_capture == ep_stream_capture(stream)", "new": "ht->captured.head",
     "tests": ["arrivals_refused"]},
    {"name": "arrivals_pushed_out", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\t\thandle->ht->captured = arrivals;\n",
     "new": "\t\thandle->ht->captured = arrivals;\n\t\thandle->ht->arrivals.head = NULL;\n",
     "tests": ["arrivals_refused"]},
    {"name": "arrivals_rerouted", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\thandle->ht->captured.head = NULL;\n", "new": "", "tests": ["arrivals_refused"]},
    # Callers of earlier versions have counters of dispatch ignored.
    {"name": "counters_api", "file": "plugin/ep/ht/ht_launch.c",
     "old": "if (em && config->api >= 3) {",
     "new": "if (em && config->api >= 2) {", "tests": ["ht_misuse"]},
    # A rank does not mask itself.
    {"name": "mask_self", "file": "plugin/ep/mask.c",
     "old": "if (!mask[g->rank]) {",
     "new": "if (!mask[0]) {", "tests": ["misuse_calls"]},
    # Memory of the caller's allocator is aligned.
    {"name": "alloc_odd", "file": "plugin/ep/alloc.c",
     "old": "(uintptr_t)*ptr % EP_ALLOC_ALIGN", "new": "(uintptr_t)*ptr % 8", "tests": ["group_life"]},
    # ... and whatever device that leaves, the library goes on with its own.
    {"name": "alloc_turned", "file": "plugin/ep/alloc.c",
     "old": "\t    cudaSetDevice(call->device) != cudaSuccess) {\n", "new": "\t    !call) {\n",
     "tests": ["group_life"]},
    # A process that may not have long files is not ended by a signal.
    {"name": "file_limit", "file": "plugin/core/shared_file.c",
     "old": "at + bytes > limit.rlim_cur", "new": "!fd", "tests": ["mappings_in_host"]},
    # The rows that a rank will receive are those that are kept, without padding and dropped ones.
    {"name": "received_padding", "file": "plugin/ep/ht/ht.c",
     "old": "*rows += zones[i].kept;", "new": "*rows += zones[i].rows;", "tests": ["ht_received"]},
    # NCCL is not too old.
    {"name": "nccl_least", "file": "plugin/core/nccl_dyn.c",
     "old": "v >= EP_NCCL_LEAST",
     "new": "v >= 0", "tests": ["mappings_ancient"]},
    # ---- the library's threads ----
    # A moment without room for a thread passes,
    {"name": "thread_tried_once", "file": "plugin/core/timed_call.c",
     "old": "#define EP_THREAD_TRIES 10", "new": "#define EP_THREAD_TRIES 1", "tests": ["threads"]},
    # ... and no thread takes a signal of the program.
    {"name": "thread_signalled", "file": "plugin/core/timed_call.c",
     "old": "\tpthread_sigmask(SIG_SETMASK, &all, &before);\n\terror",
     "new": "\tpthread_sigmask(SIG_SETMASK, NULL, &before);\n\terror", "tests": ["threads"]},
    # ---- exchanges on the host ----
    # What NCCL may still use is not freed where CUDA fails to report.
    {"name": "query_failed", "file": "plugin/core/bootstrap.c",
     "old": "\t\t\tboot->stuck = true; /* for all that is known */\n", "new": "", "tests": ["bootstrap"]},
    # A rank that dies while NCCL connects does not hold up the others.
    {"name": "connect_unbounded", "file": "plugin/core/bootstrap.c",
     "old": "boot->no_thread = ep_device", "new": "boot->no_thread = true || ep_device",
     "tests": ["bootstrap"]},
    # NCCL only remembers what is called between ncclGroupStart and ncclGroupEnd: no exchange waits there,
    {"name": "exchange_in_caller", "file": "plugin/core/bootstrap.c",
     "old": "boot->no_thread = ep_device", "new": "boot->no_thread = boot->exchanges || ep_device",
     "tests": ["bootstrap"]},
    # ... and one that NCCL has put behind others has brought nothing, but may yet.
    {"name": "exchange_blank", "file": "plugin/core/bootstrap.c",
     "old": "\t\tif (first == EP_BOOT_BLANK) {\n", "new": "\t\tif (!boot) {\n",
     "tests": ["bootstrap"]},
    {"name": "exchange_forgotten", "file": "plugin/core/bootstrap.c",
     "old": "\t\t\tboot_keep(boot);\n\t\t\treturn boot_kept_fail(",
     "new": "\t\t\treturn boot_kept_fail(", "tests": ["bootstrap"]},
    # The caller's thread makes an exchange that has none; where that does not work the error says why.
    {"name": "exchange_threadless", "file": "plugin/core/bootstrap.c",
     "old": "\tif (boot->no_thread) {\n\t\treturn ep_fail(", "new": "\tif (false) {\n\t\treturn ep_fail(",
     "tests": ["bootstrap"]},
    # The limit of an exchange is one, in NCCL's call and on the device; its thread has the caller's context.
    {"name": "connect_twice", "file": "plugin/core/bootstrap.c",
     "old": "EP_CHECK(boot_wait(boot, start, what));", "new": "EP_CHECK(boot_wait(boot, ep_now_ns(), what));",
     "tests": ["bootstrap"]},
    {"name": "connect_context", "file": "plugin/core/cuda.c",
     "old": "\treturn cudaSetDevice(device);", "new": "\treturn device < 0 ? cudaErrorInvalidDevice : cudaSuccess;",
     "tests": ["bootstrap"]},
    # A heap of NCCL's is freed while the program captures, which a wait for the device would end,
    {"name": "freed_captured", "file": "plugin/peer/leave.c",
     "old": "if (!frees_at_once && !ep_context_ended", "new": "if (!ep_context_ended",
     "tests": ["leave_capture"]},
    # ... and other heaps when the device is at rest.
    {"name": "freed_busy", "file": "plugin/peer/leave.c",
     "old": "e->mapping->lasting && !e->mapping->in_host;", "new": "true;", "tests": ["leave_capture_ipc"]},
    {"name": "freed_busy_host", "file": "plugin/peer/leave.c",
     "old": "e->mapping->lasting && !e->mapping->in_host;", "new": "e->mapping->lasting;",
     "tests": ["leave_capture_host"]},
    # A group is made while other threads capture: the thread that registers its memory does not end that.
    {"name": "connect_captured", "file": "plugin/core/cuda.c",
     "old": "\t(void)cudaThreadExchangeStreamCaptureMode(&mode);\n\treturn", "new": "\t(void)mode;\n\treturn",
     "tests": ["memory_captures"]},
    # A window of a communicator that does not block may not be there yet.
    {"name": "window_unready", "file": "plugin/peer/window.c",
     "old": "\t\tjob->result = ncclInProgress;\n", "new": "\t\tjob->result = ncclSuccess;\n",
     "tests": ["replace_stay"]},
    # NCCL's own thread may still begin an exchange that this rank has given up.
    {"name": "connect_freed", "file": "plugin/core/bootstrap.c",
     "old": "\t\t\tboot_keep(boot);\n\t\t\treturn boot_late(", "new": "\t\t\treturn boot_late(",
     "tests": ["bootstrap"]},
    # A rank's own error stands where the exchange that would spread it fails.
    {"name": "own_error_lost", "file": "plugin/core/bootstrap.c",
     "old": "\t\t(void)ep_fail_again(&first);\n", "new": "", "tests": ["bootstrap"]},
    # ---- a rank joins ----
    # Nobody joins in the place of a rank that takes part,
    {"name": "place_taken", "file": "plugin/ep/replace.c",
     "old": "\tif (g->mask_host[r]) {", "new": "\tif (false) {", "tests": ["join"]},
    # ... or whose process may still store,
    {"name": "place_alive", "file": "plugin/ep/replace.c",
     "old": "\tif (!ep_ident_gone(&g->idents[g->rank], lost)) {", "new": "\tif (false) {", "tests": ["join"]},
    # ... since only its main thread has ended,
    {"name": "place_alive_threads", "file": "plugin/core/process.c",
     "old": "\t\t\t*state = 'R';\n", "new": "", "tests": ["ident"]},
    # ... and nobody takes the lost rank's step for the newcomer's.
    {"name": "place_remembered", "file": "plugin/ep/replace.c",
     "old": "\tEP_CUDA(cudaMemsetAsync(heap + words[i], 0, 8, g->stream), what);",
     "new": "\t(void)words;", "tests": ["join_at_once"]},
    # Where the newcomer's memory cannot be mapped the address shows what it showed.
    {"name": "place_empty", "file": "plugin/peer/window.c",
     "old": "\t    vmm_map_at(at, before, bytes, device, &ignored) != CUDA_SUCCESS) {",
     "new": "\t    vmm_map_at(at, before, 0, device, &ignored) == CUDA_ERROR_NOT_FOUND) {",
     "tests": ["replace_nth_each"]},
    # The newcomer's memory is where graphs have the lost rank's.
    {"name": "place_elsewhere", "file": "plugin/peer/window.c",
     "old": "\t\terror = *base ? vmm_map_instead", "new": "\t\terror = false ? vmm_map_instead", "tests": ["replace_stay"]},
    # The newcomer's heap is laid out as the others'.
    {"name": "join_small", "file": "plugin/ep/group.c",
     "old": "\tif (topk > g->heap.topk) {\n\t\tg->heap", "new": "\tif (false) {\n\t\tg->heap", "tests": ["join"]},
    # The group grows by the communicator that all have.
    {"name": "join_old_comm", "file": "plugin/ep/replace.c",
     "old": "\tg->comm = comm;\n", "new": "\t(void)comm;\n", "tests": ["join"]},
    # A newcomer has no step before MaskClean, and no mask gives it one.
    {"name": "join_unclean", "file": "plugin/ep/halves.c",
     "old": "\tif (ep_ranks_has(&g->joined, (uint32_t)g->rank) && !ep_stream_capture(stream)) {",
     "new": "\tif (false) {", "tests": ["replace_stay"]},
    {"name": "join_by_mask", "file": "plugin/ep/mask.c",
     "old": "\t\tif (mask[r] && ep_ranks_has(&g->joined, (uint32_t)r)) {", "new": "\t\tif (false) {",
     "tests": ["replace_stay"]},
    # A rank that waits for one that has destroyed its group says that it has left.
    {"name": "left_unsaid", "file": "plugin/ep/record.c",
     "old": "left = behind[0] && record_left(group, record->peer);",
     "new": "left = behind[0] && !record_left(group, record->peer);", "tests": ["leave_early_ipc"]},
    # A rank that refuses its call where the heap may have to grow is named by those who wait,
    {"name": "refused_untold", "file": "plugin/ep/handle.c",
     "old": "\t\tep_group_heap_refuse(g);\n", "new": "\t\t(void)ep_group_heap_refuse;\n", "tests": ["group_life"]},
    # ... unless it comes after all.
    {"name": "refused_forever", "file": "plugin/core/bootstrap.c",
     "old": "#define EP_BOOT_REFUSED_NS 2000000000ull", "new": "#define EP_BOOT_REFUSED_NS 0ull", "tests": ["group_life"]},
]
