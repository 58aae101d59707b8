# SPDX-License-Identifier: Apache-2.0
"""Mutants of the kernels, and of what the host does for them. Above each: the promise that it breaks."""

MUTANTS = [
    # Bulk copies come behind what a wait for the other ranks has acquired.
    {"name": "begin_unfenced", "file": "device/ht/step.h",
     "old": "\tep_bulk_fence_global();\n\treturn agreed != 0;", "new": "\treturn agreed != 0;", "tests": ["groups_crowded"]},
    # ---- low latency, and what the algorithms share ----
    # Rows of bytes are in memory before their flags.
    {"name": "ll_nofence", "file": "device/ll/rows.h",
     "old": ("\tep_release_fence_sys();\n"
             "\tep_st_fenced_sys_u64(ep_ll_row_flag"),
     "new": "\tep_st_fenced_sys_u64(ep_ll_row_flag",
     "tests": ["matrix_rm", "matrix_em"]},
    # A bank is used again when every rank has done with it, not a step before.
    {"name": "bank_early", "file": "device/group/step.h",
     "old": "(int32_t)((uint32_t)word - op.freed) <= 0",
     "new": "(int32_t)((uint32_t)word - op.freed) < 0", "tests": ["waits"]},
    # Two banks take turns: not the one that peers still have to leave, nor the third one.
    {"name": "bank_left", "file": "device/group/step.h",
     "old": "age = age ? age : 0xfffffffeu;", "new": "", "tests": ["halves"]},
    {"name": "bank_third", "file": "device/group/step.h",
     "old": "seq->step - seq->freed[b] : 0xfffffffdu;",
     "new": "seq->step - seq->freed[b] + (seq->step != seq->freed[b]) : 1;",
     "tests": ["halves"]},
    # A bank that was freed too many steps ago to compare is free.
    {"name": "bank_rested", "file": "device/group/step.h",
     "old": "> EP_GROUP_LONG_FREE) {", "new": "> 0xfffffffeu) {", "tests": ["halves"]},
    # A receive that is a step of its own frees the bank at its own step.
    {"name": "freed_epoch", "file": "device/group/step.h",
     "old": "uint32_t freed = launch.halves & EP_HALF_RECV ? op.step : op.epoch;",
     "new": "uint32_t freed = op.epoch;", "tests": ["interleave", "steps", "halves"]},
    # Kernels may start while those before them end, ...
    {"name": "launch_late", "file": "plugin/ep/kernel.c",
     "old": ".numAttrs = g->programmatic ? 1 : 0,", "new": ".numAttrs = 0,",
     "tests": ["steady"]},
    # ... but with drivers whose graphs do not know it.
    {"name": "launch_driver", "file": "plugin/ep/kernel.c",
     "old": "driver >= EP_GRAPHS_KNOW_LAUNCHES &&", "new": "driver &&", "tests": ["steady"]},
    # ... and where the program wants it.
    {"name": "launch_early_always", "file": "plugin/ep/kernel.c",
     "old": "params->value[EP_PARAM_EARLY_START] && driver", "new": "driver", "tests": ["steady"]},
    # A rank whose counts have come before the decision falls is not absent.
    {"name": "arrival_unpolled", "file": "device/ll/dispatch_recv.h",
     "old": "here = verdict != EP_ARRIVAL_ABSENT && counts_poll(a, op, tables, r);",
     "new": "here = verdict == EP_ARRIVAL_PRESENT && counts_poll(a, op, tables, r);",
     "tests": ["views_present"]},
    # All blocks follow the decision of the first one who is absent.
    {"name": "arrival_ignored", "file": "device/ll/dispatch_recv.h",
     "old": "decisions->done = !c.g.mask_enabled;",
     "new": "decisions->done = true;", "tests": ["views_strike", "views_split", "views_again"]},
    # ... also of ranks above 63.
    {"name": "arrival_beyond", "file": "device/ll/dispatch_recv.h",
     "old": ("ep_ll_decision_adopt(a, op, tables, r);\n"
             "\t\t}\n"
             "\t}\n"
             "\treturn ep_all(EP_FULL_MASK, ok);\n"),
     "new": ("ep_ll_decision_adopt(a, op, tables, r);\n"
             "\t\t}\n"
             "\t}\n"
             "\t(void)ok;\n"
             "\treturn true;\n"),
     "tests": ["views_beyond"]},
    # A child of fork() does nothing with its parent's group.
    {"name": "forked", "file": "plugin/ep/call.c",
     "old": "if (owner != self) {",
     "new": "if (owner > self + 1) {", "tests": ["leave_forked_nodes", "leave_forked"]},
    # A group can be made while a stream is being captured.
    {"name": "create_captured", "file": "plugin/ep/api.c",
     "old": ("\tmode = capture_mode(cudaStreamCaptureModeRelaxed);\n"
             "\tresult = ep_group_create("),
     "new": ("\tmode = capture_mode(cudaStreamCaptureModeGlobal);\n"
             "\tresult = ep_group_create("),
     "tests": ["memory"]},
    # The last vector of a row comes back.
    {"name": "comb_tail", "file": "device/ll/ll_combine.cu",
     "old": "narrow, off < a.token_bytes && row != EP_LL_ZERO_ROW);",
     "new": "narrow, off + 8 < a.token_bytes && row != EP_LL_ZERO_ROW);",
     "tests": ["matrix_em", "matrix_rm", "sizes_rows"]},
    # A lone row comes back as it is, zeros of either sign, too; what nothing is added to is 0.
    {"name": "comb_zero_sign", "file": "device/ll/ll_combine.cu",
     "old": "sum[n] = term.valid ? -0.0f : 0.0f;", "new": "sum[n] = 0.0f;",
     "tests": ["matrix_em", "matrix_rm", "ids"]},
    {"name": "comb_zero_empty", "file": "device/ll/ll_combine.cu",
     "old": "sum[n] = term.valid ? -0.0f : 0.0f;", "new": "sum[n] = -0.0f;",
     "tests": ["ids", "matrix_em", "masks"]},
    # A row that is lost comes back as zeros.
    {"name": "zero_row", "file": "device/ll/dispatch_recv.h",
     "old": "c.h.slot_row[(size_t)at * c.topk + k] = row;",
     "new": "c.h.slot_row[(size_t)at * c.topk + k] = w.row;", "tests": ["ids", "ids_processes", "matrix_em"]},
    # ... and on its own rank counts as zeros as well.
    {"name": "zero_row_own", "file": "device/ll/dispatch_recv.h",
     "old": "c.h.route[(size_t)token * c.topk + k] = row;",
     "new": "c.h.route[(size_t)token * c.topk + k] = w.row;", "tests": ["ids"]},
    # Masked ranks are sent no rows.
    {"name": "mask_send", "file": "device/ll/dispatch_send.h",
     "old": "if (id < 0 || !ep_mask_active(c.g, rank)) {",
     "new": "if (id < 0) {", "tests": ["masks", "views_split", "races_mask_dispatch"]},
    # ... and no rows return to them.
    {"name": "mask_return", "file": "device/ll/ll_combine.cu",
     "old": "if (ret.slot >= ret.rows || !ep_mask_active_warp(c.g, ret.src)) {",
     "new": "if (ret.slot >= ret.rows) {", "tests": ["masks_processes", "masks_host"]},
    # Of many tokens, rows return from lists: each once, of slots that there are, and to no masked rank.
    {"name": "list_place", "file": "device/ll/ll_combine.cu",
     "old": "place += (i & 1 ? first : 0) + ep_popc(", "new": "place += ep_popc(",
     "tests": ["matrix_em", "alike_ll", "sizes_many"]},
    {"name": "list_next", "file": "device/ll/ll_combine.cu",
     "old": "\t\ti -= all;\n", "new": "", "tests": ["sizes_windows", "sizes_many"]},
    {"name": "list_more", "file": "device/ll/ll_combine.cu",
     "old": "\t\tslots = return_most(c, true) * a.others;\n", "new": "\t\tslots = list_slots(c);\n",
     "tests": ["sizes_windows", "sizes_many"]},
    {"name": "list_slots", "file": "device/ll/ll_combine.cu",
     "old": "n.slot < notes.slots[j]", "new": "n.slot < c.max_tokens",
     "tests": ["sizes_windows", "matrix_em", "alike_ll"]},
    {"name": "list_mask", "file": "device/ll/ll_combine.cu",
     "old": "if (!ep_mask_active_warp(c.g, src)) {", "new": "if (0) {",
     "tests": ["masks"]},
    # Own rows of many tokens are placed from the caller's tensor: without scales, and not by another half.
    {"name": "own_scales", "file": "plugin/ep/ll/ll_launch.c",
     "old": "!dispatch->config.send_only && !dispatch->scale_bytes &&",
     "new": "!dispatch->config.send_only &&", "tests": ["matrix_forward", "sizes_rows"]},
    {"name": "own_split", "file": "plugin/ep/ll/ll_launch.c",
     "old": "!dispatch->config.send_only && !dispatch->scale_bytes &&",
     "new": "!dispatch->scale_bytes &&", "tests": ["halves"]},
    # A token that names an expert twice has a row for each time.
    {"name": "repeat_local", "file": "device/ll/dispatch_send.h",
     "old": "n += tables.id[i] == expert && ep_div(i, c.by_topk) < local;",
     "new": "n += tables.id[i] == expert && ep_div(i, c.by_topk) <= local;", "tests": ["ids", "matrix_em"]},
    # A mask is one of its round: MaskClean ends it.
    {"name": "clean_round", "file": "device/group/mask.h",
     "old": "return word >> 32 & 1 && (int32_t)((round - op.clean_round) << 1) >= 0 &&",
     "new": ("(void)round;\n"
             "\treturn word >> 32 & 1 &&"),
     "tests": ["masks", "clean", "views_split"]},
    # Who sees itself masked looks once more before it parts.
    {"name": "masked_once", "file": "device/group/wait.h",
     "old": "\t\tspin->polls |= EP_WAIT_MASKED;\n", "new": "\t\treturn EP_CAUSE_EXCLUDED;\n", "tests": ["unit/waits"]},
    # A step that a rank refuses, with masks, is one WQE: what came before it may be nothing.
    {"name": "silent_two", "file": "device/group/remote.h",
     "old": "uint64_t posted = silent ? 1 : EP_REMOTE_STEP_WQES;",
     "new": "uint64_t posted = EP_REMOTE_STEP_WQES + 0 * silent;", "tests": ["nodes_given_up"]},
    # A combine refuses what was dispatched before a MaskClean.
    {"name": "receipt_round", "file": "device/group/step.h",
     "old": "return is_combine && found.receipt.clean_round != found.seq.clean_round ? EP_CAUSE_CLEANED",
     "new": "return 0 ? EP_CAUSE_CLEANED", "tests": ["halves", "clean", "masks"]},
    # ---- formats of low latency's rows ----
    # Each element gets the scale of its group, in both quads of a tile.
    {"name": "ll_scale_word", "file": "device/ll/formats.h",
     "old": "off < payload ? i / 8 - (quad & 1) * 3 : 0;", "new": "off < payload ? i / 8 - (quad & 1) * 4 : 0;",
     "tests": ["matrix_formats"]},
    {"name": "ll_scale_half", "file": "device/ll/formats.h",
     "old": "payload + at) >> (off & 16);", "new": "payload + at);", "tests": ["matrix_formats"]},
    {"name": "ll_scale_byte", "file": "device/ll/formats.h",
     "old": "byte = i % 8 / SCALE::lanes;", "new": "byte = i % 4 / SCALE::lanes;", "tests": ["matrix_formats"]},
    # A scale is that of the whole group.
    {"name": "ll_scale_lanes", "file": "device/ll/formats.h",
     "old": "amax = SCALE::larger(amax, ep_shfl_xor_f32(EP_FULL_MASK, amax, x));",
     "new": "amax = SCALE::larger(amax, ep_shfl_xor_f32(EP_FULL_MASK, amax, 1));", "tests": ["matrix_formats", "matrix_fp8"]},
    # A row is quantised by its own global scale.
    {"name": "ll_scale_row", "file": "device/ll/ll_combine.cu",
     "old": "ep_ll_tile_quantise<F>(ep_ll_quantiser_make(false, now_global), now,",
     "new": "ep_ll_tile_quantise<F>(ep_ll_quantiser_make(false, rows ? global : now_global), now,",
     "tests": ["matrix_formats"]},
    {"name": "ll_scale_own", "file": "device/ll/ll_combine.cu",
     "old": "r.global = return_global(a, route);", "new": "r.global = return_global(a, 0);",
     "tests": ["matrix_formats", "alike_ll"]},
    # Of its own rows a rank has what others would get of them: by the scale of the whole group.
    {"name": "ll_own_group", "file": "device/ll/formats.h",
     "old": "own_lane<LINES>(quad, at ^ x)", "new": "own_lane<LINES>(quad, x < 4 ? at ^ x : at)",
     "tests": ["matrix_formats", "alike_ll"]},
    # Of a team's rows each is where its warp has put it.
    {"name": "ll_team_row", "file": "device/ll/ll_combine.cu",
     "old": "ep_warp() + ep_popc(made & ((1u << k) - 1));", "new": "ep_warp();", "tests": ["alike_ll", "matrix_formats"]},
    # ... and a row that no warp has taken is quantised by the one that adds.
    {"name": "ll_team_few", "file": "device/ll/ll_combine.cu",
     "old": "\treturn own & ~left;\n", "new": "\treturn own;\n", "tests": ["sizes_rows"]},
    {"name": "ll_own_other", "file": "device/ll/formats.h",
     "old": "(quad & 1 ? spare - 4 : spare + payload / 16)", "new": "(quad & 1 ? 0 : spare + payload / 16)",
     "tests": ["matrix_formats", "alike_ll"]},
    # A row of zeros, whose scale may be infinite, returns zeros.
    {"name": "ll_scale_zeros", "file": "device/ll/ll_combine.cu",
     "old": "? ep_nvfp4_global(a.scales[row]) : 1.0f;", "new": "? a.scales[row] : 1.0f;", "tests": ["matrix_formats"]},
    # A lone rank returns rows to itself nowhere: its heap has no room for them.
    {"name": "ll_lone_return", "file": "device/ll/ll_combine.cu",
     "old": "j >> shift, a.others != 0);", "new": "j >> shift, true);", "tests": ["sizes_rows"]},
    # Of a rank that fails while a quantised row of it is awaited nothing is added.
    {"name": "ll_quad_failed", "file": "device/ll/ll_combine.cu",
     "old": "row.v[0], quad, off, weight, counts);", "new": "row.v[0], quad, off, weight, counts || true);",
     "tests": ["masks_quantised"]},
    # Rows of combine come to ranks whose node has no rank that brings tokens to it.
    {"name": "roles_no_room", "file": "plugin/ep/ll/ll_heap.c",
     "old": "\tuint64_t rows = ll_area_rows(shape, nodes->near_senders, nodes->near_holders, topk);",
     "new": "\tuint64_t rows = ll_area_rows(shape, 1, 0, topk);",
     "tests": ["heap"]},
    # Counts go to those that hold experts alone, and come from those that bring tokens.
    {"name": "roles_counts_awaited", "file": "plugin/ep/ll/ll_launch.c",
     "old": "ll_peers_make(roles->first_sender, roles->senders, ep_group_holds(g));",
     "new": "ll_peers_make(roles->first_sender, roles->senders, true);",
     "tests": ["roles"]},
    {"name": "roles_counts_sent", "file": "plugin/ep/ll/ll_launch.c",
     "old": "ll_peers_make(roles->first_holder, roles->holders, ep_group_sends(g));",
     "new": "ll_peers_make(roles->first_holder, roles->holders, true);",
     "tests": ["roles"]},
    # A rank's row lies by its number among those of its node that bring tokens.
    {"name": "roles_place", "file": "plugin/ep/remote.c",
     "old": "\t\tplaces[r].there = remote ? before : self;", "new": "\t\tplaces[r].there = remote ? (uint32_t)g->rank : self;",
     "tests": ["net_roles_mixed"]},
    # In the stage remote ranks have headers that hold experts, and no others: for these there is no room.
    {"name": "roles_staged", "file": "plugin/ep/remote.c",
     "old": "staged += remote && ep_roles_holds(roles, (uint32_t)r);", "new": "staged += remote;", "tests": ["net_roles_few"]},
    # The thread that counts a rank's rows also sends the number.
    {"name": "roles_counts_race", "file": "device/ll/dispatch_send.h",
     "old": "\t\tfor (uint32_t d = c.to.first + ep_nthreads() - 1 - ep_tid(); d < c.to.end;\n\t\t     d += ep_nthreads()) {\n\t\t\ttables",
     "new": "\t\tfor (uint32_t d = ep_nthreads() - 1 - ep_tid(); d < c.g.nranks;\n\t\t     d += ep_nthreads()) {\n\t\t\ttables",
     "tests": ["roles"]},
    # Who brings no tokens is refused with tokens.
    {"name": "roles_tokens", "file": "plugin/ep/handle.c",
     "old": "if (ids.sizes[0] && !ep_group_sends(handle->group)) {", "new": "if (false) {",
     "tests": ["roles"]},
    # Global ids count from the first rank that holds experts.
    {"name": "roles_global", "file": "plugin/ep/ll/ll_launch.c",
     "old": "args->expert_id_base = ((uint32_t)g->rank - g->config.shape.roles.first_holder) *",
     "new": "args->expert_id_base = (uint32_t)g->rank *", "tests": ["matrix_roles"]},
    # Peers count by their roles when a group's memory is laid out, and where none is yet.
    {"name": "roles_senders", "file": "plugin/core/nodes.c",
     "old": "\t\tsenders[remote] += ep_roles_sends(roles, (uint32_t)i);", "new": "\t\tsenders[remote]++;", "tests": ["params"]},
    {"name": "roles_holders", "file": "plugin/core/nodes.c",
     "old": "\t\tholders[remote] += i != r && ep_roles_holds(roles, (uint32_t)i);", "new": "\t\tholders[remote] += i != r;",
     "tests": ["params"]},
    {"name": "roles_sources", "file": "plugin/core/nodes.c",
     "old": "\t\t\t*its += ep_roles_sends(roles, (uint32_t)r);", "new": "\t\t\t*its += 1;", "tests": ["params"]},
    {"name": "roles_announced", "file": "plugin/ep/query.c",
     "old": "\tif (!asked->roles && !listed) {", "new": "\tif (!(asked->roles && asked->remote_ranks) && !listed) {",
     "tests": ["memory"]},
    # A rank that holds experts and brings no tokens needs no memory for these.
    {"name": "roles_tensors", "file": "plugin/ep/query.c",
     "old": "\treturn apart ? ep_max_u64(holds, sends) : holds + sends;", "new": "\treturn apart ? holds + sends : holds + sends;", "tests": ["roles"]},
    # A routing is for groups of the same roles.
    {"name": "ht_roles_stamp", "file": "plugin/ep/ht/ht.c",
     "old": "\t\troles->senders,\n\t};", "new": "\t};", "tests": ["ht_roles"]},
    # A newcomer has the roles of the group.
    {"name": "roles_joined", "file": "plugin/ep/group.c",
     "old": "EP_IMPORT_OPTIONAL(&own_roles, roles, NCCL_EP_EXT_ROLES);",
     "new": "EP_IMPORT_OPTIONAL(&own_roles, part == EP_PART_JOIN ? NULL : roles, NCCL_EP_EXT_ROLES);",
     "tests": ["join_roles"]},
    # High throughput: areas begin with the first rank whose rows can lie there.
    {"name": "ht_roles_place", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\tuint64_t from = back ? c->roles.first_holder : c->roles.first_sender;",
     "new": "\tuint64_t from = back ? c->roles.first_sender : c->roles.first_holder;", "tests": ["ht_roles"]},
    # Who holds experts and brings no tokens returns the rows of each sender once: a second time they may lie over later ones.
    {"name": "ht_roles_turns", "file": "plugin/ep/ht/ht_launch.c",
     "old": "a.turns = c->h->layout == NCCL_EP_LAYOUT_FLAT ? a.c.roles.others\n",
     "new": "a.turns = c->h->layout == NCCL_EP_LAYOUT_FLAT ? a.c.roles.others\n\t\t  : a.c.roles.sender == EP_HT_NONE ? a.c.roles.senders + 1\n",
     "tests": ["ht_roles_head"]},
    # Who brings no tokens writes nothing where those who do write; who holds no experts waits for no tables.
    {"name": "ht_roles_told", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\t\t.told = sends ? r->holders : 0,", "new": "\t\t.told = r->holders,", "tests": ["ht_roles"]},
    {"name": "ht_roles_tables", "file": "device/ht/route_place.h",
     "old": "\t\tif (!c.nlocal || ep_ht_sender(c, s)", "new": "\t\tif (ep_ht_sender(c, s)", "tests": ["ht_roles"]},
    # A rank without experts has no zones and no counters.
    {"name": "ht_roles_local", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\treturn ep_group_holds(g) ? g->config.shape.nlocal : 0;", "new": "\treturn g->config.shape.nlocal;", "tests": ["ht_roles"]},
    # Flows are of those that bring tokens.
    {"name": "ht_roles_flows", "file": "plugin/ep/ht/ht_nodes.c",
     "old": "\t\tnumber += ht_nodes_forwards(nodes, f, r) && ep_roles_sends(nodes->roles, r);",
     "new": "\t\tnumber += ht_nodes_forwards(nodes, f, r);", "tests": ["net_ht_roles_mixed"]},
    # Combine has a ring for each rank that holds experts, dispatch for each that brings tokens.
    {"name": "ht_roles_rings", "file": "plugin/ep/ht/ht_heap.c",
     "old": "return (uint32_t)ep_max_u64(shape->roles.senders, shape->roles.holders);", "new": "return shape->roles.senders;",
     "tests": ["ht_heap"]},
    # A token with rows on more than 32 ranks is quantised again for the others.
    {"name": "ll_quantise_once", "file": "device/ll/ll_dispatch.cu",
     "old": "\t\t\tep_ll_token_quantise<F>(a, token, q / F::tile_quads, scratch);\n",
     "new": "\t\t\tif (!fanout.first_rank)\n\t\t\tep_ll_token_quantise<F>(a, token, q / F::tile_quads, scratch);\n",
     "tests": ["matrix_formats_many"]},
    # Each warp of the largest block has a scratch of its own.
    {"name": "ll_scratch", "file": "plugin/ep/ll/ll_plan.c",
     "old": "plan->shared_bytes = op->geometry.threads / 32 * EP_LL_TILE_BYTES;",
     "new": "plan->shared_bytes = 8 * EP_LL_TILE_BYTES;", "tests": ["plan", "matrix_formats"]},
    # ---- the same bits whatever the batch ----
    # Low latency adds a token's rows in ascending k, also those that are here first,
    {"name": "ll_near_first", "file": "device/ll/ll_combine.cu",
     "old": "\tfor (uint32_t left = term.valid; left;) {\n",
     "new": ("\tuint32_t later = ep_ballot(EP_FULL_MASK, EP_LL_ROUTE_IS_AWAY(term.route)) & term.valid;\n\n"
             "\tfor (uint32_t left = term.valid & ~later; left | later;) {\n"
             "\t\tif (!left) {\n\t\t\tleft = later;\n\t\t\tlater = 0;\n\t\t}\n"),
     "tests": ["alike_ll"]},
    # ... and high throughput in the order of ranks, whatever comes first to whichever warp,
    {"name": "ht_warp_order", "file": "device/ht/combine_copy.h",
     "old": "\t\tsum_add<F, WHOLE>(sum, pipe.stage + (size_t)slot * pipe.stride + at, vecs);\n",
     "new": ("\t\tsum_add<F, WHOLE>(sum, pipe.stage + (size_t)ep_ht_pipe_slot(&pipe, pipe.out, (i + ep_warp()) % n)\n"
             "\t\t\t\t\t\t* pipe.stride + at, vecs);\n"), "tests": ["alike_ht"]},
    # ... in fp32 also where the stage does not hold all of a row's contributions.
    {"name": "ht_batch_rounds", "file": "device/ht/combine_copy.h",
     "old": "\t\t\tn--;\n\t\t}\n\t}\n",
     "new": ("\t\t\tn--;\n\t\t}\n\t} else {\n"
             "\t\tfor (uint32_t i = 0; i < EP_HT_SUM_VECS; i++) {\n"
             "\t\t\tfloat *half = sum->f[i] + F::numbers::count;\n"
             "\t\t\tF::numbers::load(F::numbers::store(sum->f[i]), sum->f[i]);\n"
             "\t\t\tF::numbers::load(F::numbers::store(half), half);\n\t\t}\n\t}\n"), "tests": ["ht_wide"]},
    # ---- number formats ----
    # No channel of an MXFP8 group saturates.
    {"name": "e8m0_down", "file": "device/simt/numeric.h",
     "old": "uint32_t byte = (b + 0x1fffffu) >> 23;", "new": "uint32_t byte = b >> 23;", "tests": ["numeric"]},
    # ... nor does the scale grow where the largest is 448 times a power of two.
    {"name": "e8m0_up", "file": "device/simt/numeric.h",
     "old": "(b + 0x1fffffu) >> 23", "new": "(b + 0x200000u) >> 23", "tests": ["numeric"]},
    # An infinite channel stays infinite.
    {"name": "e8m0_inf", "file": "device/simt/numeric.h",
     "old": "nan ? 0x7fffffffu : 0x00400000u", "new": "nan ? 0x7fffffffu : 0", "tests": ["numeric"]},
    # FP8: a scale rounded up is a power of two that no element exceeds, and that of zeros is none that divides by 0.
    {"name": "fp8_up", "file": "device/simt/numeric.h",
     "old": "\tb = (b + 0x7fffffu) & 0x7f800000u;\n", "new": "\tb &= 0x7f800000u;\n", "tests": ["numeric"]},
    {"name": "fp8_zeros", "file": "device/simt/numeric.h",
     "old": "float a = amax > 1e-4f ? amax : 1e-4f;", "new": "float a = amax;", "tests": ["numeric"]},
    # NaN in a group shows.
    {"name": "amax_nan", "file": "device/simt/numeric.h",
     "old": "return ep_bits_f32(a > b ? a : b);", "new": "return amax > fabsf(f) ? amax : fabsf(f);",
     "tests": ["numeric"]},
    # e2m1 rounds once, ties to even.
    {"name": "e2m1_twice", "file": "device/simt/numeric.h",
     "old": "a + (0x1p23f + 2.0f)", "new": "a + 2.0f + 0x1p23f", "tests": ["numeric"]},
    {"name": "e2m1_sign", "file": "device/simt/numeric.h",
     "old": "x = x != x ? ep_bits_f32(0x7fffffffu) : x;", "new": "", "tests": ["numeric"]},
    # A group whose scale is 0 becomes zeros.
    {"name": "nvfp4_zero", "file": "device/simt/numeric.h",
     "old": "*inverse = scale == 0.0f ? 0.0f : global / scale;", "new": "*inverse = global / scale;",
     "tests": ["numeric"]},
    # The fast way to e2m1 is for groups whose products it can round, and rounds as the other.
    {"name": "nvfp4_far", "file": "device/simt/numeric.h",
     "old": "amax * r->inverse < 7.0f", "new": "amax * r->inverse < 8.0f", "tests": ["numeric"]},
    {"name": "nvfp4_wide", "file": "device/simt/numeric.h",
     "old": "r->inverse) < 0x1p60f", "new": "r->inverse) < 0x1p126f", "tests": ["numeric"]},
    {"name": "nvfp4_near", "file": "device/simt/numeric.h",
     "old": "ep_f32_bits(r->inverse) & 0xfff00000u", "new": "ep_f32_bits(r->inverse) & 0xffc00000u",
     "tests": ["numeric"]},
    {"name": "nvfp4_least", "file": "device/simt/numeric.h",
     "old": "reciprocal * 1.25f", "new": "reciprocal * 1.0f", "tests": ["numeric"]},
    {"name": "nvfp4_signs", "file": "device/simt/numeric.h",
     "old": "first, second, 0x7632", "new": "first, second, 0x6732", "tests": ["numeric"]},
    # A scale of NVFP4 is the nearest e4m3 of the exact quotient.
    {"name": "nvfp4_sixth", "file": "device/simt/numeric.h",
     "old": "(amax * (1.0f / 6.0f))", "new": "(amax * 0.166666f)", "tests": ["numeric"]},
    # ---- high throughput ----
    # Expert-major, one node: only rows that have been stored are announced, and only those are loaded.
    {"name": "ht_rows_more", "file": "device/ht/dispatch.h",
     "old": "NODES ? word : ep_ht_rows_word(op.epoch, chunk, rows)", "new": "NODES ? word : ep_ht_rows_word(op.epoch, chunk, rows + !last)",
     "tests": ["ht_em_ring", "ht_em", "ht_em_race", "ht_late"]},
    # A rank that knows of all rows of a unit is told nothing more: its word may be the next unit's by then.
    {"name": "ht_rows_again", "file": "device/ht/dispatch.h",
     "old": "(NODES || rows != unpublished->told)", "new": "(last || rows != unpublished->told)", "tests": ["ht_head"]},
    # Who waits for rows has announced its own, which its peers may wait for.
    {"name": "ht_more_silent", "file": "device/ht/dispatch_copy.h",
     "old": "\t\t\tif (!pipe->held) { /* who is waited for may need it */\n\t\t\t\tep_ht_send_publish<false>(a, op, pipe, unpublished);\n\t\t\t}\n",
     "new": "", "tests": ["ht_thin"]},
    {"name": "ht_rows_ahead", "file": "device/ht/dispatch_copy.h",
     "old": "ep_ctz(work->unit.rows) >= work->arrived", "new": "ep_ctz(work->unit.rows) > work->arrived",
     "tests": ["ht_em_ring", "ht_em", "ht_em_race", "ht_late"]},
    # A unit is announced when its stores are done.
    {"name": "ht_publish_early", "file": "device/ht/dispatch.h",
     "old": "\tep_ht_pipe_stored(pipe, unpublished->group);\n", "new": "", "tests": ["ht_flat_ring", "ht_flat_race", "ht_flat"]},
    # A ring slot's credit is told when its last load has ended.
    {"name": "ht_credit_early", "file": "device/ht/dispatch_copy.h",
     "old": ("\tif (!ep_ht_pipe_wait(a.c.g, op, pipe, a.c.g.rank)) {\n"
             "\t\treturn false;\n"
             "\t}\n"
             "\tfrom = ep_ht_pipe_oldest(pipe);\n"
             "\tif (forwards) {\n"
             "\t\tep_ht_forward_store(a, item, piece, from);\n"
             "\t}\n"
             "\tif (sends) {\n"
             "\t\tstored->sent = EP_HT_ROW(item.what) == 0 ? 0 : stored->sent;\n"
             "\t\tep_ht_send_store(stored->target, piece, from, ep_ht_sends_early<NODES>(a),\n"
             "\t\t\t\t &stored->sent);\n"
             "\t} else if (!NODES || item.slot != EP_HT_NONE) {\n"
             "\t\tep_ht_recv_store(a, item.l, item.slot, piece, from);\n"
             "\t}\n"
             "\tep_ht_pipe_release(pipe);\n"
             "\tif (item.what & EP_HT_LAST) {\n"
             "\t\titem_credit<NODES>(a, op, item);\n"
             "\t}\n"),
     "new": ("\tif (item.what & EP_HT_LAST) {\n"
             "\t\titem_credit<NODES>(a, op, item);\n"
             "\t}\n"
             "\tif (!ep_ht_pipe_wait(a.c.g, op, pipe, a.c.g.rank)) {\n"
             "\t\treturn false;\n"
             "\t}\n"
             "\tfrom = ep_ht_pipe_oldest(pipe);\n"
             "\tif (forwards) {\n"
             "\t\tep_ht_forward_store(a, item, piece, from);\n"
             "\t}\n"
             "\tif (sends) {\n"
             "\t\tstored->sent = EP_HT_ROW(item.what) == 0 ? 0 : stored->sent;\n"
             "\t\tep_ht_send_store(stored->target, piece, from, ep_ht_sends_early<NODES>(a),\n"
             "\t\t\t\t &stored->sent);\n"
             "\t} else if (!NODES || item.slot != EP_HT_NONE) {\n"
             "\t\tep_ht_recv_store(a, item.l, item.slot, piece, from);\n"
             "\t}\n"
             "\tep_ht_pipe_release(pipe);\n"),
     "tests": ["ht_em_ring", "ht_flat_ring"]},
    # Arrivals: a row counts when it is stored.
    {"name": "early_unstored", "file": "device/ht/ht_early.cu",
     "old": "\tep_ht_pipe_stored(pipe, stored->group);\n", "new": "", "tests": ["arrivals_em"]},
    # ... all parts of it,
    {"name": "early_part", "file": "device/ht/ht_early.cu",
     "old": "what |= part + 1 == a.d.parts ? EARLY_PART_END : 0;",
     "new": "what |= part == 0 ? EARLY_PART_END : 0;", "tests": ["arrivals_parts"]},
    # ... and with its weight.
    {"name": "early_weight", "file": "device/ht/ht_early.cu",
     "old": "part == 0 && a.d.topk_weights) {\n\t\tearly_weights(",
     "new": "part == 1 && a.d.topk_weights) {\n\t\tearly_weights(", "tests": ["arrivals_em"]},
    # A unit is announced behind its last row.
    {"name": "early_end", "file": "device/ht/ht_early.cu",
     "old": "(kind == EARLY_SEND ? EARLY_END : EARLY_PART_END)", "new": "EARLY_PART_END",
     "tests": ["arrivals_em", "arrivals_seed"]},
    # A slot of the ring is written again when it was read.
    {"name": "early_credit", "file": "device/ht/ht_early.cu",
     "old": "(kind == EARLY_SEND && unit.chunk < a.ring_chunks)", "new": "kind == EARLY_SEND",
     "tests": ["arrivals_ring"]},
    # A selection that names an expert again has no place, nor weight.
    {"name": "early_again", "file": "device/ht/ht_early.cu",
     "old": "h.l.sel != EP_HT_NONE && !(h.l.sel & EP_HT_SEL_AGAIN) &&", "new": "h.l.sel != EP_HT_NONE &&",
     "tests": ["arrivals_em", "arrivals_seed"]},
    # Rows of padding do not come.
    {"name": "early_padding", "file": "device/ht/ht_early.cu",
     "old": "expert.missing = expert.rows = c.h.zones[e].kept;", "new": "expert.missing = expert.rows = c.h.zones[e].rows;",
     "tests": ["arrivals_em"]},
    # Lists are in the order of experts, both ends alike.
    {"name": "early_unordered", "file": "device/ht/ht_early.cu",
     "old": "return zone_find(c, c.h.recv_sel[(size_t)(l.base + i) * c.width]);\n", "new": "return 0;\n",
     "tests": ["ht_route"]},
    {"name": "early_last_expert", "file": "device/ht/ht_early.cu",
     "old": "? ep_min_u32(key, local)", "new": "? local",
     "tests": ["ht_route"]},
    # A dispatch that fails says so to those who wait for its rows.
    {"name": "early_silent", "file": "device/ht/ht_early.cu",
     "old": "\t} else if (ep_lane() == 0) {\n\t\tep_st_release_gpu_u32(&a.arrivals.head->failed, 1);\n", "new": "",
     "tests": ["arrivals_refused"]},
    # With roles rows never go straight into windows, which ranks without rows do not have.
    {"name": "ht_apart_direct", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\tif (ht_apart(handle->group)) {\n\t\treturn ", "new": "\tif (false) {\n\t\treturn ",
     "tests": ["ht_roles_windows"]},
    # A call whose launch fails leaves the counts to the next dispatch.
    {"name": "ht_early_forgotten", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\tEP_CHECK(ep_kernel_launch(dispatch->h->group, (const void *)ep_ht_dispatch_early_kernel, &a,",
     "new": "\tht->arrivals.head = NULL;\n"
            "\tEP_CHECK(ep_kernel_launch(dispatch->h->group, (const void *)ep_ht_dispatch_early_kernel, &a,",
     "tests": ["arrivals_refused"]},
    {"name": "ht_early_unrouted", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\thandle->ht->all_receive = false;\n", "new": "\thandle->ht->arrivals.head = NULL;\n",
     "tests": ["arrivals_refused"]},
    # One dispatch counts, and the next one leaves the memory alone.
    {"name": "early_twice", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\tarrivals->head = NULL; /* a dispatch that was not launched", "new": "\t/* a dispatch that was not launched",
     "tests": ["arrivals_em"]},
    # Where handle memory has no routing who waits learns that at once.
    {"name": "early_unrouted", "file": "device/ht/ht_early.cu",
     "old": "\t\thead.failed = !routed;", "new": "\t\thead.failed = 0;", "tests": ["arrivals_refused"]},
    # Lists are of the routing that handle memory has.
    {"name": "early_stale", "file": "device/ht/ht_early.cu",
     "old": "bool stale = a.arrivals.head->routing != c.h.head->routing;", "new": "bool stale = false;",
     "tests": ["arrivals_refused"]},
    # Ranks agree whether a dispatch counts arrivals.
    {"name": "early_unsigned", "file": "plugin/ep/signature.c",
     "old": "signature->word[EP_SIGNATURE_DIRECTION] += EP_SIGNATURE_ARRIVALS;",
     "new": "signature->word[EP_SIGNATURE_DIRECTION] += 0;", "tests": ["arrivals_refused"]},
    # A new routing forgets them.
    {"name": "early_kept", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\thandle->ht->arrivals.head = NULL;\n\thandle->ht->captured", "new": "\thandle->ht->captured",
     "tests": ["arrivals_refused"]},
    # Weights from other nodes are taken of all sources, all of them.
    {"name": "nd_weights_share", "file": "device/ht/ht_dispatch_nodes.cu",
     "old": "i < turns * sharers;", "new": "i < turns;",
     "tests": ["net_ht_flat", "net_ht_em"]},
    {"name": "nd_weights_few", "file": "device/ht/ht_dispatch_nodes.cu",
     "old": "\t     i += workers) {\n\t\tuint32_t share", "new": "\t     i += turns * sharers) {\n\t\tuint32_t share",
     "tests": ["net_ht_crowd", "unlike_ht_nodes"]},
    # What has come over the network is overwritten when its last load has ended.
    {"name": "nd_consumed_early", "file": "device/ht/dispatch_copy.h",
     "old": "\tif (!ep_ht_pipe_wait(a.c.g, op, pipe, a.c.g.rank)) {\n",
     "new": ("\tif (NODES && (item.what & EP_HT_LAST)) {\n"
             "\t\titem_credit<NODES>(a, op, item);\n"
             "\t}\n"
             "\tif (!ep_ht_pipe_wait(a.c.g, op, pipe, a.c.g.rank)) {\n"),
     "tests": ["net_ht_credits"]},
    # A unit that is forwarded is announced as one that is sent.
    {"name": "nd_forward_unpublished", "file": "device/ht/dispatch_copy.h",
     "old": "(sends || forwards) && !ep_ht_windows<NODES>(a)",
     "new": "sends && !ep_ht_windows<NODES>(a)",
     "tests": ["net_ht_flat"]},
    # One store serves the NICs, whichever node is first in the token's list.
    {"name": "nd_stage_first", "file": "device/ht/dispatch.h",
     "old": "stores = remote ? ep_lane() == first : stores;",
     "new": "stores = remote ? ep_lane() == 0 && first == 0 : stores;",
     "tests": ["net_ht_flat"]},
    # Between an acquired flag and a bulk load there is a proxy fence.
    {"name": "ht_noproxy", "file": "device/ht/units.h",
     "old": "\tep_bulk_fence_global(); /* the engines of others have stored, or read what is overwritten */\n",
     "new": "", "tests": ["ht_flat_ring", "ht_flat"]},
    # Windows: a warp's stores are done before it says so.
    {"name": "ht_done_early", "file": "device/ht/dispatch_copy.h",
     "old": ("\tif (ep_ht_windows<NODES>(a)) {\n"
             "\t\tep_ht_pipe_stored(pipe, pipe->groups);\n"
             "\t}\n"
             "\treturn true;"),
     "new": "\treturn true;", "tests": ["ht_window", "ht_window_late", "ht_soak"]},
    # Combine: returned rows are announced when their stores are done.
    {"name": "ht_due_early", "file": "device/ht/combine_copy.h",
     "old": "\t\tep_ht_pipe_stored(&pipe, due->group);\n",
     "new": "", "tests": ["ht_flat_ring", "ht_flat", "ht_flat_race"]},
    # Across nodes: what the ranks of a node return is added when it has come,
    {"name": "nd_merge_early", "file": "device/ht/combine.h",
     "old": "\tx = NODES && work.is_merge ? ep_ht_merge_flow(a, work.unit) : 0;\n",
     "new": ("\tif (NODES && work.is_merge) {\n"
             "\t\treturn EP_HT_NONE;\n"
             "\t}\n"
             "\tx = NODES && work.is_merge ? ep_ht_merge_flow(a, work.unit) : 0;\n"),
     "tests": ["net_ht_flat", "net_ht_em"]},
    # ... by a rank that is the k-th to return a token,
    {"name": "nd_merge_order", "file": "device/ht/combine.h",
     "old": "if ((mask >> row & 1) && k-- == 0) {", "new": "if ((mask >> row & 1) && k == 0) {",
     "tests": ["net_ht_crowd"]},
    # which may be of the same key: a merge or a sum does not hold up the return that it waits for,
    {"name": "nd_tie_merge", "file": "device/ht/combine.h",
     "old": "work->is_merge = NODES && merge < back && merge <= sum;",
     "new": "work->is_merge = NODES && merge != EP_HT_NONE && merge <= back && merge <= sum;",
     "tests": ["net_ht_crowd"]},
    {"name": "nd_tie_sum", "file": "device/ht/combine.h",
     "old": "work->is_sum = !work->is_merge && sum < back;",
     "new": "work->is_sum = !work->is_merge && sum != EP_HT_NONE && sum <= back;",
     "tests": ["net_ht_crowd"]},
    # nor a sum the merge,
    {"name": "nd_tie_last", "file": "device/ht/combine.h",
     "old": "work->is_merge = NODES && merge < back && merge <= sum;",
     "new": "work->is_merge = NODES && merge < back && merge < sum;",
     "tests": ["net_ht_ties"]},
    # and a token's sum has one row of each other node.
    {"name": "nd_sum_twice", "file": "device/ht/combine.h",
     "old": "ep_ballot(EP_FULL_MASK, there && ep_ctz(alike) == ep_lane());",
     "new": "ep_ballot(EP_FULL_MASK, there && (ep_ctz(alike) == ep_lane() || *node != EP_HT_NONE));",
     "tests": ["net_ht_flat", "net_ht_em"]},
    # What has come over the network for a sum is given free.
    {"name": "nd_sum_kept", "file": "device/ht/combine_copy.h",
     "old": "\t\tsum_consumed(a, op, chunk, part);\n", "new": "\t\t;\n",
     "tests": ["net_ht_credits"]},
    # A combine's input is its caller's again when the kernel ends: peers have read it.
    {"name": "ht_comb_nowait", "file": "device/ht/combine_node.h",
     "old": "\t\t\tep_ht_done_wait(a.c, e.op, &failed);\n",
     "new": "",
     "tests": ["ht_window", "ht_idle"]},
    # Marks of one step are not those of the next.
    {"name": "signature_one_slot", "file": "device/group/group_layout.h",
     "old": "return ((uint64_t)(step % EP_SIGNATURE_SLOTS) * nranks + r) *",
     "new": "return ((uint64_t)(step % 1) * nranks + r) *",
     "tests": ["unit/signature"]},
    # Ranks that disagree: each field is in the signature,
    {"name": "signature_type", "file": "plugin/ep/signature.c",
     "old": "signature->word[type] = (uint32_t)view->datatype + 1;",
     "new": "signature->word[type] = 1;",
     "tests": ["mismatch"]},
    {"name": "signature_rounded", "file": "plugin/ep/signature.c",
     "old": "(rounded ? EP_SIGNATURE_ROUND_SCALES : 0);",
     "new": "0;\n\t(void)rounded;",
     "tests": ["mismatch"]},
    {"name": "signature_direction", "file": "plugin/ep/signature.c",
     "old": "s.word[EP_SIGNATURE_DIRECTION] = (uint32_t)c->config.pass_direction;",
     "new": "s.word[EP_SIGNATURE_DIRECTION] = 0;",
     "tests": ["ht_mismatch"]},
    {"name": "signature_origin", "file": "device/group/group_layout.h",
     "old": "return hash ^ origin * 0x9e3779b1u;",
     "new": "return hash ^ (origin & 0) * 0x9e3779b1u;",
     "tests": ["mismatch"]},
    # dispatch compares it,
    {"name": "signature_ctrl", "file": "device/ll/dispatch_recv.h",
     "old": "if (d1 != c.launch.sent_hash) {",
     "new": "if (d1 == c.launch.sent_hash + 1) {",
     "tests": ["mismatch"]},
    # so does combine,
    {"name": "signature_combine", "file": "device/ll/ll_combine.cu",
     "old": "uint32_t flag = op.epoch ^ ep_step_seal(c.launch, found);",
     "new": "uint32_t flag = op.epoch ^ 0 * ep_step_seal(c.launch, found);",
     "tests": ["mismatch"]},
    # and of rows that a NIC has brought,
    {"name": "signature_remote", "file": "device/ll/ll_combine.cu",
     "old": "if (valid && remote && mark != ep_signature_mark(op.epoch, flag ^ op.epoch)) {",
     "new": "if (false) {", "tests": ["net_mismatch"]},
    # unless a later mark has its place,
    {"name": "signature_gone", "file": "device/group/wait.h",
     "old": "if (mark && (int32_t)((uint32_t)(mark >> 32) - op.epoch) > 0) {",
     "new": "if (false) {", "tests": ["net_interleave_pending"]},
    # where no rows come, too,
    {"name": "signature_close", "file": "device/group/signature.h",
     "old": "for (uint32_t i = ep_lane(); i < 2 * g.nranks; i += EP_WARP_SIZE) {",
     "new": "for (uint32_t i = ep_lane(); i < 0; i += EP_WARP_SIZE) {",
     "tests": ["mismatch"]},
    # but not of steps before a rank was taken in,
    {"name": "signature_kept_clean", "file": "device/group/masks.cu",
     "old": "\tep_signature_forget(a.g);\n\tfor (uint32_t r", "new": "\tfor (uint32_t r",
     "tests": ["clean"]},
    {"name": "signature_kept_update", "file": "device/group/masks.cu",
     "old": "if (forgets) {", "new": "if (false) {", "tests": ["clean"]},
    # and high throughput;
    {"name": "signature_ht", "file": "device/ht/step.h",
     "old": "if ((uint32_t)mark != seal) {",
     "new": "if ((uint32_t)mark == seal + 1) {",
     "tests": ["ht_mismatch"]},
    # who waits for something else looks,
    {"name": "signature_look", "file": "device/group/signature.h",
     "old": "r < first + EP_SIGNATURE_CHECKS && r < g.nranks",
     "new": "r < first + 0 * EP_SIGNATURE_CHECKS && r < g.nranks",
     "tests": ["mismatch"]},
    # and each value is said of its rank.
    {"name": "signature_swapped", "file": "plugin/ep/signature.c",
     "old": "signature_print(theirs, i, its, sizeof(its));\n\tsignature_print(ours, i, mine,",
     "new": "signature_print(ours, i, its, sizeof(its));\n\tsignature_print(theirs, i, mine,",
     "tests": ["mismatch", "ht_mismatch"]},
    # Ranks that make a heap grow for another top-k do not get heaps of different forms.
    {"name": "growth_topk", "file": "plugin/ep/group_heap.c",
     "old": "if (all[r].topk != all[0].topk) {",
     "new": "if (all[r].topk > 1000 + all[0].topk) {", "tests": ["mismatch"]},
    # Ranks with different numbers of SMs cut rows alike.
    {"name": "least_sms", "file": "plugin/ep/ht/ht_launch.c",
     "old": ".least_sms = handle->group->config.least_sms[ht_budgets[kind]],",
     "new": ".least_sms = handle->group->config.budget[ht_budgets[kind]].sms,", "tests": ["unlike_ht_parts"]},
    # The last chunk that needs a ring slot again gets its credit.
    {"name": "ht_credit_last", "file": "device/ht/dispatch.h",
     "old": "if (chunk + c.areas.ring_chunks < c.h.head->chunks && ep_lane() == 0) {",
     "new": "if (chunk + c.areas.ring_chunks + 1 < c.h.head->chunks && ep_lane() == 0) {",
     "tests": ["ht_flat_ring", "ht_em_ring", "ht_gaps"]},
    # The padding of the last zone is cleared.
    {"name": "ht_zero_last", "file": "device/ht/dispatch.h",
     "old": "\t\tif (z < c.nlocal) {\n",
     "new": "\t\tif (z + 1 < c.nlocal) {\n", "tests": ["ht_em", "ht_drop", "ht_em_ring"]},
    # Weights behind the rows that come are 0.
    {"name": "ht_fill", "file": "device/ht/dispatch.h",
     "old": "\t\ta.out_weights[i] = 0.0f;\n", "new": "", "tests": ["ht_flat", "ht_forward", "ht_drop"]},
    # Rows are cut for the SMs that NCCL_EP_OVERLAP leaves, as if the caller had asked for so many.
    {"name": "ht_overlap_units", "file": "plugin/ep/ht/ht_plan.c",
     "old": "op->overlap && !op->shape.nodes.flows", "new": "op->direct", "tests": ["ht_plan"]},
    # A group has what NCCL_EP_OVERLAP says,
    {"name": "ht_overlap_heard", "file": "plugin/ep/ht/ht_launch.c",
     "old": ".overlap = handle->group->config.overlap,",
     "new": ".overlap = false,", "tests": ["steady"]},
    # ... which leaves alone how many SMs the caller asks for.
    {"name": "ht_overlap_asked", "file": "plugin/ep/ht/ht_plan.c",
     "old": "} else if (op->device.auto_sms && op->overlap) {",
     "new": "} else if (op->overlap) {", "tests": ["ht_plan"]},
    # Expert-major combine of one node has kernels of its own, for so many warps as its plan has;
    {"name": "ht_experts_kernel", "file": "plugin/ep/ht/ht_launch.c",
     "old": "bool experts = h->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR && ",
     "new": "bool experts = false && ", "tests": ["ht_em", "ht_mxfp8"]},
    # ... flat combine has those that copy.
    {"name": "ht_flat_kernel", "file": "plugin/ep/ht/ht_launch.c",
     "old": "bool experts = h->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR && ",
     "new": "bool experts = ", "tests": ["ht_flat", "ht_window"]},
    # Few blocks of it have 16 warps, more have 10,
    {"name": "ht_crowded", "file": "plugin/ep/ht/ht_plan.c",
     "old": "blocks > EP_HT_CROWDED_BLOCKS &&", "new": "blocks <= EP_HT_CROWDED_BLOCKS &&",
     "tests": ["ht_plan"]},
    # ... unless there is a warp for each return.
    {"name": "ht_crowded_few", "file": "plugin/ep/ht/ht_plan.c",
     "old": "units > (uint64_t)blocks * EP_HT_EXPERTS_WARPS;", "new": "units > 0;",
     "tests": ["ht_plan"]},
    # Then sums are cut, and each piece has tokens of its own,
    {"name": "ht_sum_piece", "file": "device/ht/combine.h",
     "old": "+ (piece << shift);", "new": "+ (0 * piece << shift);", "tests": ["ht_few"]},
    # ... but where the ring is used again one sum gives a chunk's place free.
    {"name": "ht_sum_ring", "file": "plugin/ep/ht/ht_plan.c",
     "old": "op->ring_chunks < chunks || returns > warps) {", "new": "returns > warps) {",
     "tests": ["ht_plan"]},
    # Where some warps only send, each unit that is received is one other warp's:
    {"name": "ht_deal_stride", "file": "device/ht/units.h",
     "old": "\t\td.stride -= a.send_blocks * a.send_warps;\n", "new": "",
     "tests": ["ht_plan", "ht_senders_flat"]},
    {"name": "ht_deal_turn", "file": "device/ht/units.h",
     "old": "\t\tturn -= blocks * a.send_warps;\n", "new": "", "tests": ["ht_plan", "ht_senders_flat"]},
    {"name": "ht_deal_idle", "file": "device/ht/units.h",
     "old": "idle * ep_warp();", "new": "idle * 0;", "tests": ["ht_senders"]},
    {"name": "ht_deal_edge", "file": "device/ht/units.h",
     "old": "turn = ep_block() < a.send_blocks ?", "new": "turn = ep_block() <= a.send_blocks ?",
     "tests": ["ht_plan", "ht_senders"]},
    # ... and each that is sent one of theirs.
    {"name": "ht_deal_sent", "file": "device/ht/units.h",
     "old": "\t\tblocks = a.send_blocks;\n", "new": "", "tests": ["ht_plan", "ht_senders"]},
    {"name": "ht_deal_dispatch", "file": "device/ht/dispatch.h",
     "old": ": ep_ht_deal_received<NODES>(a).stride;", "new": ": ep_ht_deal_sent<NODES>(a).stride;",
     "tests": ["ht_senders_head"]},
    {"name": "ht_deal_returns", "file": "device/ht/combine.h",
     "old": "work->next_return += ep_ht_deal_sent<NODES>",
     "new": "work->next_return += ep_ht_deal_received<NODES>", "tests": ["ht_senders_flat"]},
    {"name": "ht_deal_sums", "file": "device/ht/combine.h",
     "old": "work->next_sum += ep_ht_deal_received<NODES>",
     "new": "work->next_sum += ep_ht_deal_sent<NODES>", "tests": ["ht_senders_soak"]},
    # Short rows take more SMs, on both sides alike; expert-major chunks are sent in whole rounds, by no more than that takes.
    {"name": "ht_senders_rows", "file": "plugin/ep/ht/ht_plan.c",
     "old": "more = ht_row_sms(op);", "new": "more = 1;", "tests": ["ht_plan"]},
    {"name": "ht_senders_rows_come", "file": "plugin/ep/ht/ht_plan.c",
     "old": "more = more < blocks / both ? more : blocks / both;", "new": ";", "tests": ["ht_plan"]},
    {"name": "ht_senders_rounds", "file": "plugin/ep/ht/ht_plan.c",
     "old": "\tif (!flat) {\n\t\tsenders =", "new": "\tif (false) {\n\t\tsenders =",
     "tests": ["ht_plan"]},
    {"name": "ht_senders_both", "file": "plugin/ep/ht/ht_plan.c",
     "old": "\t\tblocks = (uint32_t)ep_min_u64(blocks, (uint64_t)both);\n", "new": "", "tests": ["ht_plan"]},
    # One warp of a block receives at least.
    {"name": "ht_senders_all", "file": "plugin/ep/ht/ht_plan.c",
     "old": "(uint64_t)op->send_warps, warps - 1)", "new": "(uint64_t)op->send_warps, warps)",
     "tests": ["ht_plan"]},
    # Warps are not divided where each would have less than two units,
    {"name": "ht_senders_few", "file": "plugin/ep/ht/ht_plan.c",
     "old": "if (units + 1 >= 2 * senders) {", "new": "if (units >= senders) {",
     "tests": ["ht_plan"]},
    # ... nor where some ranks only send, or only receive, all of which have another thing to do,
    {"name": "ht_senders_bring", "file": "plugin/ep/ht/ht_plan.c",
     "old": "r->senders != op->shape.nranks ||", "new": "false ||", "tests": ["ht_plan"]},
    {"name": "ht_senders_hold", "file": "plugin/ep/ht/ht_plan.c",
     "old": "r->holders != op->shape.nranks) {", "new": "false) {", "tests": ["ht_plan"]},
    # ... nor where sums are of many rows, or expert-major,
    {"name": "ht_senders_sums", "file": "plugin/ep/ht/ht_plan.c",
     "old": "ht_contributions(op) <= EP_HT_FEW);", "new": "true);", "tests": ["ht_plan"]},
    {"name": "ht_senders_experts", "file": "plugin/ep/ht/ht_plan.c",
     "old": "return op->kind == EP_HT_DISPATCH && op->row", "new": "return op->row", "tests": ["ht_plan"]},
    # ... nor where expert-major rows are short, nor flat ones beside computation,
    {"name": "ht_senders_short", "file": "plugin/ep/ht/ht_plan.c",
     "old": "== EP_HT_DISPATCH && op->row_bytes >= EP_HT_LINK_ROW;", "new": "== EP_HT_DISPATCH;",
     "tests": ["ht_plan"]},
    {"name": "ht_senders_overlap", "file": "plugin/ep/ht/ht_plan.c",
     "old": "return !op->overlap && ", "new": "return ", "tests": ["ht_plan"]},
    # ... nor where rows go through windows, and nothing but gradients of weights is returned.
    {"name": "ht_senders_direct", "file": "plugin/ep/ht/ht_plan.c",
     "old": "op->arrivals || op->direct) {", "new": "op->arrivals) {",
     "tests": ["ht_plan"]},
    {"name": "ht_senders_gradients", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\tif (direct) {\n\t\to.send_warps = 0;", "new": "\tif (o.direct) {\n\t\to.send_warps = 0;",
     "tests": ["steady"]},
    # The library's own choice is run: with all warps of all blocks that send nobody would receive,
    {"name": "ht_senders_chosen", "file": "plugin/ep/ht/ht_launch.c",
     "old": "a.send_blocks = p.send_blocks;\n\ta.send_warps = p.send_warps;\n\ta.by_parts",
     "new": "a.send_blocks = p.blocks;\n\ta.send_warps = p.send_warps;\n\ta.by_parts", "tests": ["ht_senders"]},
    # ... or add.
    {"name": "ht_senders_chosen_sums", "file": "plugin/ep/ht/ht_launch.c",
     "old": "a.send_blocks = p.send_blocks;\n\ta.send_warps = p.send_warps;\n\ta.sum_shift",
     "new": "a.send_blocks = p.blocks;\n\ta.send_warps = p.send_warps;\n\ta.sum_shift", "tests": ["ht_senders"]},
    # Kernels are told how many only send, and a caller's number is heard.
    {"name": "ht_senders_told", "file": "plugin/ep/ht/ht_launch.c",
     "old": "a.send_warps = p.send_warps;\n\ta.by_parts", "new": "a.send_warps = 0;\n\ta.by_parts",
     "tests": ["steady"]},
    {"name": "ht_senders_summed", "file": "plugin/ep/ht/ht_launch.c",
     "old": "a.send_warps = p.send_warps;\n\ta.sum_shift", "new": "a.send_warps = 0;\n\ta.sum_shift",
     "tests": ["steady"]},
    {"name": "ht_senders_heard", "file": "plugin/ep/group_config.c",
     "old": "out->send_warps = (int)params->value[EP_PARAM_HT_SEND_WARPS];", "new": "out->send_warps = -1;",
     "tests": ["steady"]},
    # Dispatch into windows has as many SMs as fill the links.
    {"name": "ht_windows_told", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\to.direct = direct;\n", "new": "", "tests": ["steady"]},
    # ... or those that there are: beside computation, of short rows, and where they are few.
    {"name": "ht_windows_overlap", "file": "plugin/ep/ht/ht_plan.c",
     "old": "!op->direct || op->overlap ||", "new": "!op->direct ||", "tests": ["ht_plan"]},
    {"name": "ht_windows_short", "file": "plugin/ep/ht/ht_plan.c",
     "old": "op->row_bytes < EP_HT_LINK_ROW) {", "new": "false) {", "tests": ["ht_plan"]},
    {"name": "ht_windows_few", "file": "plugin/ep/ht/ht_plan.c",
     "old": "if ((double)blocks < sms.send + sms.receive) {", "new": "if (false) {",
     "tests": ["ht_plan"]},
    # High throughput of few tokens: a piece of a row is used when all of its lines have come,
    {"name": "htl_nowait", "file": "device/ht/lines.h",
     "old": "\t\tif (ep_all(EP_FULL_MASK, have)) {", "new": "\t\tif (ep_any(EP_FULL_MASK, true)) {",
     "tests": ["ht_lines", "ht_lines_late"]},
    # ... in each lane,
    {"name": "htl_wait_any", "file": "device/ht/lines.h",
     "old": "\t\tif (ep_all(EP_FULL_MASK, have)) {", "new": "\t\tif (ep_any(EP_FULL_MASK, have)) {",
     "tests": ["ht_lines", "ht_lines_late"]},
    # ... with the weights beside it,
    {"name": "htl_word", "file": "device/ht/lines.h",
     "old": "bool have = !word || ep_ld_word(word, op.epoch, weight), over = false;",
     "new": "bool have = !word || (ep_ld_word(word, op.epoch, weight), true), over = false;",
     "tests": ["ht_lines", "ht_lines_soak", "ht_lines_late"]},
    # ... of this step.
    {"name": "htl_epoch", "file": "device/ht/lines.h",
     "old": "have &= span.first + j >= span.end ||\n\t\t\t\tep_line_has(vecs->v[j], op.epoch, op.epoch);",
     "new": "have &= span.first + j >= span.end ||\n\t\t\t\tvecs->v[j].z != 0 || ep_line_has(vecs->v[j], op.epoch, op.epoch);",
     "tests": ["ht_lines", "ht_lines_soak"]},
    # Nobody writes a place before its reader has started the step, and is through with the one before.
    {"name": "htl_begin", "file": "device/ht/ht_dispatch_lines.cu",
     "old": "ok = ep_ht_begin<false>(a.c, &entry) && lines_move(a, entry.op, sent, &next);",
     "new": ("ok = (ep_block_sync(), lines_move(a, entry.op, sent, &next)) &&\n"
             "\t     ep_ht_begin<false>(a.c, &entry);"),
     "tests": ["ht_lines_graphs", "ht_lines_late", "ht_lines_soak"]},
    # Each rank's rows have places of their own,
    {"name": "htl_ranks_share", "file": "device/ht/lines.h",
     "old": "size_t row = (size_t)r * c.max_tokens + index;",
     "new": "size_t row = (size_t)r % 2 * c.max_tokens + index;", "tests": ["ht_lines", "ht_lines_8"]},
    # ... so have their weights,
    {"name": "htl_weights_share", "file": "device/ht/lines.h",
     "old": "8 * (((size_t)r * c.max_tokens + index) * c.width + k);",
     "new": "8 * (((size_t)r % 2 * c.max_tokens + index) * c.width + k);", "tests": ["ht_lines", "ht_lines_8"]},
    # ... and areas begin with the first rank that there is.
    {"name": "htl_areas", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\ta->line_off -= from * c->max_tokens", "new": "\ta->line_off -= 2 * from * c->max_tokens",
     "tests": ["ht_lines_roles", "ht_lines_roles_bits"]},
    {"name": "htl_areas_weights", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\ta->line_weight_off -= 2 * from * lists;\n",
     "new": "", "tests": ["ht_lines_roles", "ht_lines_roles_bits"]},
    # The i-th row from a rank lies in its i-th slot.
    {"name": "htl_index", "file": "device/ht/lines.h",
     "old": "\tp.slot = base + p.index;\n",
     "new": "\tp.slot = base + (p.index ^ (base + (p.index | 1) < c.h.recv_base[p.source + 1]));\n",
     "tests": ["ht_lines"]},
    # No row is stored beyond its end.
    {"name": "htl_tail", "file": "device/ht/ht_dispatch_lines.cu",
     "old": "\t\tif (span.first + j < span.end && off < a.token_bytes + a.scale_bytes) {\n\t\t\tep_quad_store(",
     "new": "\t\tif (span.first + j < span.end) {\n\t\t\tep_quad_store(", "tests": ["ht_lines"]},
    {"name": "htl_sum_tail", "file": "device/ht/ht_combine_lines.cu",
     "old": "\t\tif (span.first + j < span.end && off < a.token_bytes) {\n\t\t\tep_quad_store(",
     "new": "\t\tif (span.first + j < span.end) {\n\t\t\tep_quad_store(", "tests": ["ht_lines"]},
    # The statistics count rows that travel as lines.
    {"name": "htl_count", "file": "device/ht/ht_dispatch_lines.cu",
     "old": "\t\tep_ht_dispatch_count(a);\n", "new": "", "tests": ["ht_lines_counters"]},
    # Arrivals go by rings, and computation beside an operation has its SMs.
    {"name": "htl_arrivals", "file": "plugin/ep/ht/ht_launch.c",
     "old": "&& !direct && !o.arrivals;", "new": "&& !direct;", "tests": ["arrivals_lines"]},
    {"name": "htl_overlap", "file": "plugin/ep/ht/ht_plan.c",
     "old": "\tif (op->device.auto_sms && op->overlap) {\n\t\tmost = ep_min_u64(most, ht_overlap_sms(op->layout));\n\t}\n\tp.blocks",
     "new": "\tp.blocks", "tests": ["ht_plan"]},
    # Who asks for lines has them with few SMs, too.
    {"name": "htl_asked", "file": "plugin/ep/ht/ht_launch.c",
     "old": ".lines_asked = handle->group->config.lines_choice == 1,",
     "new": ".lines_asked = false,", "tests": ["steady"]},
    # Of an operation that is refused no row is loaded before it begins,
    {"name": "htl_fault", "file": "device/ht/ht_combine_lines.cu",
     "old": "\tif (!e.fault && ep_warp()", "new": "\tif (ep_warp()", "tests": ["ht_lines_misuse"]},
    # ... nor behind that.
    {"name": "htl_refused", "file": "device/ht/ht_combine_lines.cu",
     "old": "\tif (ep_ht_begin<false>(a.c, &e)) {", "new": "\tif (ep_ht_begin<false>(a.c, &e) || true) {",
     "tests": ["ht_lines_misuse", "ht_lines_mismatch"]},
    # A row whose rank has all 32 selections goes to that rank, too.
    {"name": "htl_first", "file": "device/ht/ht_dispatch_lines.cu",
     "old": "first = there && (ep_lane() == 0 || before != rank);", "new": "first = there && before != rank;",
     "tests": ["ht_lines"]},
    # A piece ends with its row: the next row's place is behind it.
    {"name": "htl_span", "file": "device/ht/lines.h",
     "old": "ep_min_u32(first + lines.piece_quads, lines.quads) };", "new": "first + lines.piece_quads };",
     "tests": ["ht_lines"]},
    # Scales come with their row.
    {"name": "htl_scales", "file": "device/ht/ht_dispatch_lines.cu",
     "old": "ep_quad_store((off < a.token_bytes ? to : scales) + off, vecs.v[j],",
     "new": "ep_quad_store((off < a.token_bytes ? to : to - a.token_bytes) + off, vecs.v[j],",
     "tests": ["ht_lines_forward"]},
    # A place that is dropped is not stored.
    {"name": "htl_dropped", "file": "device/ht/ht_dispatch_lines.cu",
     "old": "ep_ballot(EP_FULL_MASK, r.sel < EP_HT_DROPPED);",
     "new": "ep_ballot(EP_FULL_MASK, r.sel != EP_HT_NONE);", "tests": ["ht_lines", "ht_lines_drop"]},
    # A token that names an expert twice has one weight for it.
    {"name": "htl_again", "file": "device/ht/ht_dispatch_lines.cu",
     "old": "bool counts = rank != EP_HT_NONE && !(s.l.sel & EP_HT_SEL_AGAIN);",
     "new": "bool counts = rank != EP_HT_NONE;", "tests": ["ht_lines"]},
    # A rank's own row is added,
    {"name": "htl_own", "file": "device/ht/ht_combine_lines.cu",
     "old": "\t\t\tsums_add<F>(&sums, own, first);\n", "new": "\t\t\t;\n", "tests": ["ht_lines"]},
    # ... at its rank's turn: the bits are those of rings.
    {"name": "htl_own_first", "file": "device/ht/ht_combine_lines.cu",
     "old": "\tsums_clear<F>(&sums);\n\tif (left) {",
     "new": ("\tsums_clear<F>(&sums);\n\tif (mine) {\n\t\tsums_add<F>(&sums, own, true);\n\t\tfirst = false;\n"
             "\t\tleft &= ~mine;\n\t}\n\tif (left) {"),
     "tests": ["alike_ht_lines"]},
    # Behind the rows of a flat output weights are 0,
    {"name": "htl_fill", "file": "device/ht/ht_dispatch_lines.cu",
     "old": "\t\tep_ht_entries_fill(a);\n", "new": "\t\t;\n", "tests": ["ht_lines_flat", "ht_lines"]},
    # ... the padding of zones is cleared,
    {"name": "htl_zero", "file": "device/ht/ht_dispatch_lines.cu",
     "old": "\t\tep_ht_zero(a, &pipe);\n", "new": "\t\t;\n", "tests": ["ht_lines_em", "ht_lines"]},
    # ... and counters are written.
    {"name": "htl_counts", "file": "device/ht/ht_dispatch_lines.cu",
     "old": "\t\tep_ht_counters_leave(a);\n", "new": "\t\t;\n", "tests": ["ht_lines", "ht_lines_em", "ht_lines_soak"]},
    # Gradients of weights go by rings.
    {"name": "htl_backward", "file": "plugin/ep/ht/ht_launch.c",
     "old": "&& !direct && !backward;", "new": "&& !direct;",
     "tests": ["ht_lines"]},
    # Room for lines is that of at most 2048 tokens,
    {"name": "htl_tokens", "file": "plugin/ep/ht/ht_heap.c",
     "old": "#define EP_HT_LINES_TOKENS 2048u", "new": "#define EP_HT_LINES_TOKENS 2049u", "tests": ["ht_heap"]},
    # ... and of no more than NCCL_EP_HT_RING_BYTES,
    {"name": "htl_room", "file": "plugin/ep/ht/ht_heap.c",
     "old": "\t\t\t       EP_QUAD_LINE_BYTES <=\n\t\t       shape->ring_bytes;",
     "new": "\t\t\t       EP_QUAD_LINE_BYTES <=\n\t\t       shape->ring_bytes + 512;", "tests": ["ht_heap"]},
    # ... for all rows, and quads begin at multiples of 512 bytes.
    {"name": "htl_area", "file": "plugin/ep/ht/ht_heap.c",
     "old": "\ta->line_weight_off = ep_group_heap_take(at, 8 * rows * width, EP_HT_LINE);",
     "new": "\ta->line_weight_off = ep_group_heap_take(at, 4 * rows * width, EP_HT_LINE);", "tests": ["ht_heap"]},
    {"name": "htl_align", "file": "plugin/ep/ht/ht_heap.c",
     "old": "\ta->line_off = ep_group_heap_take(at, rows * a->line_quads * EP_QUAD_LINE_BYTES,\n\t\t\t\t\t EP_QUAD_LINE_BYTES);",
     "new": "\ta->line_off = ep_group_heap_take(at, rows * a->line_quads * EP_QUAD_LINE_BYTES,\n\t\t\t\t\t EP_HT_LINE);",
     "tests": ["ht_heap"]},
    # Dispatch cuts rows only where that evens out SMs.
    {"name": "ht_even", "file": "plugin/ep/ht/ht_plan.c",
     "old": "< 7 * 2 * ht_busiest(op, chunks)", "new": "< 8 * 2 * ht_busiest(op, chunks)",
     "tests": ["ht_plan"]},
    # Senders do not run ahead of receivers by more than the ring holds.
    {"name": "ht_lag", "file": "plugin/ep/ht/ht_plan.c",
     "old": "uint64_t lag = ep_min_u64(op->ring_chunks / 2, EP_HT_MOST_LAG);",
     "new": "uint64_t lag = ep_min_u64(op->ring_chunks + 1, EP_HT_MOST_LAG);",
     "tests": ["ht_flat_ring", "ht_em_ring", "ht_gaps"]},
    # The gradient of an expert that a token names twice belongs to the first time.
    {"name": "ht_again_grad", "file": "device/ht/combine.h",
     "old": "uint32_t j = ep_popc(alike & until & ~again) - 1;",
     "new": "uint32_t j = ep_popc(alike & until) - 1;", "tests": ["ht_flat", "ht_em", "ht_window"]},
    # MXFP8: a group of 32 has one scale, by the largest of all its elements.
    {"name": "ht_mx_amax", "file": "device/ht/formats.h",
     "old": "\t\tamax = ep_amax(amax, ep_shfl_xor_f32(EP_FULL_MASK, amax, 2));\n",
     "new": "", "tests": ["ht_mxfp8"]},
    # ... each scale lies behind the codes in the order of groups,
    {"name": "ht_mx_scales", "file": "device/ht/combine_copy.h",
     "old": "kept = (ep_lane() & 3) == (i & 3) ? scale : kept;",
     "new": "kept = scale;", "tests": ["ht_mxfp8"]},
    # ... also the last ones of a row that ends in the middle of a sum,
    {"name": "ht_mx_tail", "file": "device/ht/combine_copy.h",
     "old": "if (row <= i && (WHOLE || at < vecs)) {",
     "new": "if (row <= i && (WHOLE || at + 32 < vecs)) {", "tests": ["ht_mxfp8"]},
    # ... of a part that is larger than a sum each piece has its own,
    {"name": "ht_mx_piece", "file": "device/ht/formats.h",
     "old": "return 8 * vecs + at / 64;",
     "new": "return 8 * vecs + at / 64 % 56;", "tests": ["ht_mxfp8"]},
    # ... and all of them are loaded.
    {"name": "ht_mx_load", "file": "device/ht/formats.h",
     "old": "return 8 * vecs + ((vecs / 4 + 15) & ~15u);",
     "new": "return 8 * vecs + 16;", "tests": ["ht_mxfp8"]},
    # Parts of a row do not overlap in the ring.
    {"name": "ht_mx_stride", "file": "device/ht/formats.h",
     "old": "return ep_ht_stage_align(part_bytes / 2 + part_bytes / 64);",
     "new": "return part_bytes / 2;", "tests": ["ht_mxfp8"]},
    # Two contributions in MXFP8 are no numbers of the tensor.
    {"name": "ht_mx_pair", "file": "device/ht/combine_copy.h",
     "old": "} else if (!F::coded && (what & EP_HT_NOTE_PAIR_MASK) == EP_HT_NOTE_PAIR) {",
     "new": "} else if ((what & EP_HT_NOTE_PAIR_MASK) == EP_HT_NOTE_PAIR) {",
     "tests": ["ht_mxfp8"]},
    # An infinite element of a sum returns infinite.
    {"name": "ht_mx_product", "file": "device/ht/formats.h",
     "old": "f[i] = ep_mul_f32(f[i], s);",
     "new": "f[i] = ep_mul_f32(f[i], s > 0x1p126f ? 0x1p100f : s);", "tests": ["ht_mxfp8"]},
    # Ranks agree in the recipe, and MXFP8 is for one layout and one node.
    {"name": "ht_mx_flat", "file": "plugin/ep/ht/ht_launch.c",
     "old": "if (c->h->layout != NCCL_EP_LAYOUT_EXPERT_MAJOR) {\n\t\treturn ep_fail(ncclInvalidArgument,\n\t\t\t       \"recipe MXFP8",
     "new": "if (!c->h) {\n\t\treturn ep_fail(ncclInvalidArgument,\n\t\t\t       \"recipe MXFP8",
     "tests": ["ht_misuse"]},
    {"name": "ht_mx_nodes", "file": "plugin/ep/ht/ht_launch.c",
     "old": "\tif (c->h->group->remote_ranks) {\n\t\treturn ep_fail(\n",
     "new": "\tif (!c->h->group) {\n\t\treturn ep_fail(\n", "tests": ["ht_regroup"]},
    {"name": "combine_recipe_alike", "file": "plugin/ep/signature.c",
     "old": "s.word[EP_SIGNATURE_RECIPE] = (uint32_t)(c->recipe - ep_combine_recipes);",
     "new": "s.word[EP_SIGNATURE_RECIPE] = 0;", "tests": ["ht_mismatch"]},
    # The last vectors of a sum of two are stored.
    {"name": "ht_pair_tail", "file": "device/ht/combine_copy.h",
     "old": ("\t\t\tif (WHOLE || at < vecs) {\n"
             "\t\t\t\tep_st16(sum_at(to, i + j), sum);"),
     "new": ("\t\t\tif (WHOLE || at + 1 < vecs) {\n"
             "\t\t\t\tep_st16(sum_at(to, i + j), sum);"),
     "tests": ["ht_flat", "ht_window", "ht_em"]},
    # Where rows are cut off, the keeper of the head counts by all tables.
    {"name": "ht_head_early", "file": "device/ht/route.cu",
     "old": "\tcut = keeper && c.nlocal && route.all[route.experts + c.roles.holder] > c.limit;",
     "new": "\tcut = false;", "tests": ["ht_cut", "ht_route", "ht_drop"]},
    # Lists of remote ranks and packets of near ones have regions of their own, whatever the handles' top-k.
    {"name": "ht_list_regions", "file": "device/ht/route_place.h",
     "old": "c.max_tokens * c.areas.list_stride;", "new": "c.max_tokens * ep_ht_list_bytes(c.width);", "tests": ["net_widths"]},
    # A list that is not full ends in a packet of its own,
    {"name": "ht_list_end", "file": "device/ht/route_place.h",
     "old": "first >= c.width || first > count", "new": "first >= c.width || first >= count",
     "tests": ["ht_route", "ht_flat"]},
    # and behind its end are no entries of an earlier one.
    {"name": "ht_list_stale", "file": "device/ht/route_place.h",
     "old": "mine = mine && !(ends & l->below);", "new": ";", "tests": ["ht_route", "ht_flat"]},
    # Counts do not lie where those of the step before are still read.
    {"name": "ht_count_bank", "file": "device/ht/route.cu",
     "old": "t.bank = op.step & 1;", "new": "t.bank = 0;", "tests": ["ht_route"]},
    # In a group that was aborted before, no count is published.
    {"name": "ht_count_aborted", "file": "device/ht/route.cu",
     "old": "ok = !failed && route_sum<NODES>(a, op, t);", "new": "ok = route_sum<NODES>(a, op, t);",
     "tests": ["ht_route"]},
    # A block that gives up leaves no routing, whatever the others do.
    {"name": "ht_head_fails", "file": "device/ht/route.cu",
     "old": ("\tif (*failed) {\n\t\tif (ep_tid() == 0) {\n"
             "\t\t\troute_fail(c, op, route);\n\t\t}\n"),
     "new": "\tif (*failed) {\n", "tests": ["ht_route"]},
    # Nothing is loaded early into a ring that is full.
    {"name": "ht_early_ring", "file": "device/ht/dispatch.h",
     "old": "work->ahead.chunk < chunks;",
     "new": "true;", "tests": ["ht_flat_ring", "ht_em_ring", "ht_gaps"]},
    # A rank that says that it waits is granted more time,
    {"name": "sign_waits", "file": "device/ht/signs.h",
     "old": "spin.polls |= sign == EP_HT_WAITS ? EP_WAIT_HELD : 0;", "new": ";",
     "tests": ["unit/ht_wait", "ht_killed_combine_within"]},
    # one that has given up ends the waits for it, which name the same rank,
    {"name": "sign_given_up", "file": "device/ht/signs.h",
     "old": "if (sign < c.g.nranks) { /*", "new": "if (sign < 0 * c.g.nranks) { /*",
     "tests": ["unit/ht_wait", "ht_ring_combine"]},
    # on other nodes, too,
    {"name": "sign_far", "file": "device/ht/signs.h",
     "old": "} else if (NODES && ep_ld_acquire_gpu_u32(left_at(c, r)) == epoch) {",
     "new": "} else if (NODES && ep_ld_acquire_gpu_u32(left_at(c, r)) == epoch + 1) {",
     "tests": ["unit/ht_wait"]},
    {"name": "sign_unleft", "file": "device/ht/signs.h",
     "old": "if (sign != EP_HT_NONE) { /* a wait", "new": "if (false) { /* a wait",
     "tests": ["unit/ht_wait"]},
    # and no sign is given twice.
    {"name": "sign_twice", "file": "device/ht/signs.h",
     "old": "return before == EP_HT_NONE || (before == EP_HT_WAITS && sign != EP_HT_WAITS);",
     "new": "return before == EP_HT_NONE || before == EP_HT_WAITS || sign == EP_HT_WAITS;",
     "tests": ["ht_nodes_ring_two", "unit/ht_wait"]},
    # ---- remote ranks, masks, host ----
    # Across nodes, nobody sends into a stage without credit.
    {"name": "nd_credit", "file": "device/ht/post.h",
     "old": ("\t       (chunk < c.areas.net_chunks ||\n"
             "\t\tep_ht_signal_wait("),
     "new": ("\t       (chunk < 2 * c.areas.net_chunks ||\n"
             "\t\tep_ht_signal_wait("),
     "tests": ["ht_post", "net_ht_credits", "net_ht_flat", "net_ht_em"]},
    # The same for chunks that go with the one that is waited for.
    {"name": "nd_credit_more", "file": "device/ht/post.h",
     "old": ("\treturn ready && (chunk < c.areas.net_chunks ||\n"),
     "new": ("\treturn ready && (chunk < 2 * c.areas.net_chunks ||\n"), "tests": ["ht_post", "net_ht_credits"]},
    # A signal announces what is staged, as far as that is there; and does not wait for more.
    {"name": "nd_signal_each", "file": "device/ht/post.h",
     "old": "at < end && (at == chunk ||", "new": "at < end && (at == chunk) && (at == chunk ||", "tests": ["ht_post"]},
    {"name": "nd_signal_early", "file": "device/ht/post.h",
     "old": "ready = ep_ht_word_reached(op, staged + part, chunk);",
     "new": "ready = part || ep_ht_word_reached(op, staged + part, chunk);", "tests": ["ht_post", "net_ht_flat"]},
    {"name": "nd_signal_late", "file": "device/ht/post.h",
     "old": "if (ep_shfl_u32(EP_FULL_MASK, l.mask, 0) && !chunk_wait(c, op, flows, x, chunk)) {",
     "new": ("if (ep_shfl_u32(EP_FULL_MASK, l.mask, 0) && (!chunk_wait(c, op, flows, x, chunk) ||\n"
             "\t    !chunk_wait(c, op, flows, x, end - 1))) {"), "tests": ["ht_post"]},
    # Rows of a bunch and their signal go by one queue, which the receiver looks at.
    {"name": "nd_queue_read", "file": "device/ht/units.h",
     "old": "return ep_ht_signal_reached(c, op, r, ep_ht_rows_channel(c, chunk), chunk + 2);",
     "new": "return ep_ht_signal_reached(c, op, r, EP_HT_ROWS, chunk + 2);", "tests": ["net_ht_flat", "net_ht_tier2"]},
    {"name": "nd_bunch_end", "file": "device/ht/post.h",
     "old": "uint32_t end = ep_min_u32(flows.chunks, ((chunk >> shift) + 1) << shift);",
     "new": "uint32_t end = flows.chunks + 0 * shift;", "tests": ["ht_post", "net_ht_flat"]},
    # The stage of a bunch is released when the queue that it went by has read it.
    {"name": "nd_release_queue", "file": "device/ht/post.h",
     "old": "struct ep_mlx5_post p = queue_open(c, peer, ep_ht_rows_channel(c, end - 1));",
     "new": "struct ep_mlx5_post p = queue_open(c, peer, EP_HT_ROWS);", "tests": ["ht_post"]},
    # Rings of the own node are written when they have room, where a stage has more of it, too.
    {"name": "nd_send_credit", "file": "device/ht/dispatch.h",
     "old": ("d, unit.chunk);\n"
             "\t\tif (before != unit.chunk &&\n"),
     "new": ("d, unit.chunk);\n"
             "\t\tif (!NODES && before != unit.chunk &&\n"),
     "tests": ["nodes_ht_late"]},
    # A kernel ends when the NIC has read the rows of all queues.
    {"name": "nd_queue_end", "file": "device/ht/post.h",
     "old": "\t\tfor (uint32_t q = 1; ok && q <= c.areas.queue_mask &&",
     "new": "\t\tfor (uint32_t q = 1; false && ok && q <= c.areas.queue_mask &&", "tests": ["ht_post"]},
    # Few flows have several queues each.
    {"name": "nd_queues", "file": "plugin/ep/ht/ht.c",
     "old": "wanted = flows < EP_HT_AUTO_QUEUES ? EP_HT_AUTO_QUEUES / flows : 1;", "new": "wanted = flows ? 1 : 1;",
     "tests": ["ht_config"]},
    # The flows of a rank are posted by as many blocks as there are.
    {"name": "nd_turns", "file": "device/ht/units.h",
     "old": "return c.remote.index[r] * c.remote.nodes + c.remote.node[r];", "new": "return r;", "tests": ["ht_post"]},
    # Across nodes, a stage is released when the NIC has read it.
    {"name": "nd_release", "file": "device/ht/post.h",
     "old": ("\tif (!ep_mlx5_wait(&p, posted, EP_MLX5_ERR_COMPLETION, EP_WAIT_RDMA_COMPLETION)) {\n"),
     "new": ("\tif (false) {\n"), "tests": ["ht_post", "net_ht_credits", "net_ht_flat", "net_ht_em"]},
    # A side of a stage is claimed when it has been released.
    {"name": "nd_claim", "file": "device/group/remote.h",
     "old": "if (p.done < index && !stage_released(g, op, p, r, index) && ep_lane() == 0) {",
     "new": "if (p.done + 4 < index && !stage_released(g, op, p, r, index) && ep_lane() == 0) {",
     "tests": ["net_sizes_far", "nodes_lossy", "net_steps_late"]},
    # The time in which a bank is waited for is none of what a sender has for its queues.
    {"name": "nd_start_bank", "file": "device/ll/ll_dispatch.cu",
     "old": "op.start_ns += ep_time_ns() - before;", "new": "op.start_ns += 0 * before;",
     "tests": ["stage_late"]},
    # A combine across nodes ends when the NIC has read its rows.
    {"name": "nd_read", "file": "device/ll/ll_combine.cu",
     "old": "\t\t\tep_remote_read(c.g, op, ep_block(), c.launch.send_blocks);\n",
     "new": "", "tests": ["net_in_place_overwrite_mode1", "net_in_place", "net_em_in_place"]},
    # A word "masked" of the step at which a rank is clean says nothing about the steps behind.
    {"name": "clean_stale", "file": "device/group/masks.cu",
     "old": "\t\tif (goes_on) { /* the round stays:", "new": "\t\tif (false) { /* the round stays:", "tests": ["clean"]},
    # MaskClean's common step lies beyond all that ranks may have begun.
    {"name": "clean_gap", "file": "device/group/masks.cu",
     "old": "#define EP_CLEAN_GAP (2 * EP_GROUP_MAX_LEAD)",
     "new": "#define EP_CLEAN_GAP 0", "tests": ["clean", "masks", "net_clean"]},
    # Who has missed MaskClean and no operation goes on with the others, if a dispatch comes next; later it is waited for.
    {"name": "clean_in_step", "file": "device/group/masks.cu",
     "old": "\tbool same = a.paired != 0;\n", "new": "\tbool same = false;\n", "tests": ["clean"]},
    {"name": "clean_paired", "file": "device/group/masks.cu",
     "old": "\tbool same = a.paired != 0;\n", "new": "\tbool same = true;\n", "tests": ["clean"]},
    # Who did not come is told, so that it sends nothing into banks that are free now, ends its waits, ...
    {"name": "clean_untold", "file": "device/group/masks.cu",
     "old": "\t\t\tclean_tell(a, board, r, word);\n", "new": "\t\t\t(void)word;\n", "tests": ["clean"]},
    {"name": "clean_untold_remote", "file": "device/group/masks.cu",
     "old": "\t(void)ep_mlx5_signal_add(&p, ep_remote_signal(a.g, p, r, control, off, word), false);",
     "new": "\t(void)p, (void)control;", "tests": ["nodes_clean"]},
    {"name": "clean_unmasked", "file": "device/group/masks.cu",
     "old": "ep_progress_word(step, board->round - 1, true);", "new": "ep_progress_word(step, board->round - 1, false);",
     "tests": ["clean"]},
    # ... and goes on with the others when it has called later;
    {"name": "clean_told_round", "file": "device/group/masks.cu",
     "old": "ep_progress_word(step, board->round - 1, true);", "new": "ep_progress_word(step, board->round, true);",
     "tests": ["clean"]},
    # what it sends in an operation that it had begun has time to arrive.
    {"name": "clean_margin", "file": "device/group/masks.cu",
     "old": "EP_CLEAN_MARGIN_NS, EP_WAIT_CLEAN", "new": "0, EP_WAIT_CLEAN", "tests": ["clean"]},
    # Two ranks that come late together: the first one to adopt what it missed is taken for one that knew it.
    {"name": "clean_late_pair", "file": "device/group/masks.cu",
     "old": "\t\t\there |= clean_here(a, board, r);\n", "new": "\t\t\there |= board->joined[r] != 0;\n",
     "tests": ["join_at_once_two", "nodes_clean", "nodes_clean_pairs"]},
    {"name": "clean_late_order", "file": "device/group/masks.cu",
     "old": ("\tif (board.adopted) {\n"
             "\t\t/* take back the call, before the result says that this rank knows the round */\n"
             "\t\tclean_publish(a, &board, EP_CLEAN_CALL);\n"
             "\t}\n"
             "\tclean_publish(a, &board, EP_CLEAN_RESULT);\n"),
     "new": ("\tclean_publish(a, &board, EP_CLEAN_RESULT);\n"
             "\tif (board.adopted) {\n"
             "\t\tclean_publish(a, &board, EP_CLEAN_CALL);\n"
             "\t}\n"),
     "tests": ["nodes_clean_pairs"]},
    {"name": "clean_banks", "file": "device/group/masks.cu",
     "old": "!goes_on && i < EP_GROUP_MAX_BLOCKS;", "new": "i < EP_GROUP_MAX_BLOCKS;", "tests": ["clean"]},
    {"name": "clean_unseen", "file": "device/group/masks.cu",
     "old": "(int32_t)((uint32_t)word - a.g.seq[0].step) >= 0;", "new": "(uint32_t)word != 1;",
     "tests": ["clean"]},
    {"name": "clean_captured", "file": "plugin/ep/halves.c",
     "old": "handle->group->unpaired |= ep_stream_capture(stream) != 0;", "new": "", "tests": ["clean"]},
    {"name": "clean_ended", "file": "plugin/ep/handle.c",
     "old": "handle->group->unpaired |= handle->pending || (handle->dispatched && !handle->combined);\n",
     "new": "\n", "tests": ["clean"]},
    # A rank that waits shows that it lives: others count from its last sign, and from its last step.
    {"name": "wait_sign", "file": "device/group/wait.h",
     "old": "\t\tep_sign_give(g, step, given + 1);\n", "new": "", "tests": ["unit/waits", "several"]},
    {"name": "wait_moved", "file": "device/group/wait.h",
     "old": "if (!excluded && wait_moved(", "new": "if (false && wait_moved(", "tests": ["unit/waits", "several"]},
    {"name": "wait_stood", "file": "device/group/wait.h",
     "old": "+ peer) != step ||", "new": "+ peer) == ~0ull ||", "tests": ["unit/waits"]},
    # A rank may be late for its own waits, as a block of it waits for its bank.
    {"name": "wait_own", "file": "device/group/wait.h",
     "old": "g.mask_enabled && peer != g.rank;", "new": "g.mask_enabled;", "tests": ["several"]},
    # Ranks of other nodes get signs, too, and count by them;
    {"name": "sign_remote", "file": "device/group/wait.h",
     "old": "if (REMOTE && !w.over) {", "new": "if (REMOTE && w.over) {", "tests": ["several_far"]},
    {"name": "sign_remote_grace", "file": "device/group/wait.h",
     "old": "g.mask_enabled && peer != g.rank;",
     "new": "g.mask_enabled && peer != g.rank && !ep_rank_remote(g, peer);", "tests": ["unit/waits"]},
    # from all blocks when the step's words have been posted, from the owner's block before, and not while it posts;
    {"name": "sign_counts", "file": "device/ll/dispatch_send.h",
     "old": "\tep_remote_leave(c.g, op, true);\n", "new": "", "tests": ["several_far"]},
    {"name": "sign_before", "file": "device/group/link.h",
     "old": "ep_block() == 0 ? &link->left_here : &link->left", "new": "&link->left", "tests": ["several_far"]},
    {"name": "sign_too_early", "file": "device/group/link.h",
     "old": "ep_block() == 0 ? &link->left_here : &link->left", "new": "&link->left_here", "tests": ["unit/signs"]},
    {"name": "sign_in_use", "file": "device/group/signs.h",
     "old": "if (!ep_control_left(", "new": "if (false && !ep_control_left(", "tests": ["unit/signs"]},
    # once each, by one wait at a time, and not to those that are masked.
    {"name": "sign_again", "file": "device/group/signs.h",
     "old": "<= g.nranks ? (uint32_t)posted & 0xffff : 0;", "new": "<= g.nranks ? 0 : 0;", "tests": ["unit/signs"]},
    {"name": "sign_lock", "file": "device/group/signs.h",
     "old": "ep_atomic_cas_acquire_gpu_u32(&g.state->posting, 0, 1)) {", "new": "false) {", "tests": ["unit/signs"]},
    {"name": "sign_unlock", "file": "device/group/signs.h",
     "old": "\tep_st_release_gpu_u32(&g.state->posting, 0);\n", "new": "", "tests": ["unit/signs"]},
    {"name": "sign_masked", "file": "device/group/signs.h",
     "old": "if (!ep_rank_remote(g, r) || !ep_mask_active(g, r)) {", "new": "if (!ep_rank_remote(g, r)) {",
     "tests": ["unit/signs"]},
    # A word that a wait posts needs room in the queue.
    {"name": "word_room", "file": "device/mlx5/qp.h",
     "old": "if (!status && at >= ep_ld_acquire_gpu_u64(&qp->done) + qp->depth) {", "new": "if (false) {",
     "tests": ["unit/signs"]},
    # Who is behind others grants less than those who may wait for it.
    {"name": "wait_behind", "file": "device/group/wait.h",
     "old": "ep_max_u32(stand, 1 + lead)", "new": "ep_max_u32(stand, 1 + 0 * lead)",
     "tests": ["killed_far_told", "unit/waits"]},
    # Waits of a step count from the first one of it that was in vain.
    {"name": "wait_since", "file": "device/group/wait.h",
     "old": ("\tif (counts) {\n"
             "\t\twait_since(g, op, &spin, peer);\n"
             "\t}"),
     "new": "", "tests": ["several"]},
    # Rows that a progress word has overtaken are waited for.
    {"name": "overtaken", "file": "device/group/wait.h",
     "old": "\treturn (int32_t)((uint32_t)word - op.epoch) > 0 && ep_rank_remote(g, peer) &&",
     "new": "\treturn false && (int32_t)((uint32_t)word - op.epoch) > 0 && ep_rank_remote(g, peer) &&",
     "tests": ["nodes_masks_overtaken", "net_masks", "nodes_masks"]},
    # A window is known by its address and its end, not by its handle alone.
    {"name": "h_window", "file": "plugin/ep/window.c",
     "old": "(known[i].win != tensor->win_hdl || known[i].base[g->rank] + last != end)",
     "new": "(known[i].win != tensor->win_hdl || last == UINT64_MAX)", "tests": ["ht_window"]},
    # A heap that grows keeps the rounds of masks.
    {"name": "h_rounds", "file": "plugin/ep/group_heap.c",
     "old": "\t\tresult = ep_boot_agree(&boot, group_keep_rounds(g, &grown, &heap),",
     "new": "\t\t(void)group_keep_rounds;\n\t\tresult = ep_boot_agree(&boot, ncclSuccess,",
     "tests": ["clean", "memory", "steps_growth"]},
    # MaskUpdate ends when its kernel is in the stream.
    {"name": "h_settle", "file": "plugin/ep/mask.c",
     "old": ("\treturn ep_kernel_launch(g, (const void *)ep_update_kernel, &args, 1, threads, 0, stream,\n"
             "\t\t\t\t\"launching MaskUpdate\");"),
     "new": "\treturn args.g.rank + threads ? ncclSuccess : ncclInternalError;",
     "tests": ["masks", "net_masks_hand", "nodes_masks"]},
]

# Each field of the signature is one that ranks compare.
MUTANTS += [
    {"name": "signature_no_" + field.lower(), "file": "plugin/ep/signature.c",
     "old": "h = (h ^ signature->word[i]) *",
     "new": "h = (h ^ (i == EP_SIGNATURE_%s ? 0 : signature->word[i])) *" % field, "tests": [test]}
    for field, test in (
        ("CALL", "mismatch"), ("LAYOUT", "mismatch"), ("TOPK", "mismatch"), ("RECIPE", "mismatch"),
        ("TOKENS_TYPE", "mismatch"), ("TOKENS_EXTENT", "mismatch"), ("SCALES_TYPE", "mismatch"),
        ("SCALES_EXTENT", "mismatch"), ("DIRECTION", "ht_mismatch"), ("ALIGNMENT", "ht_mismatch"),
        ("WINDOW", "ht_mismatch"), ("TOKENS_OFFSET", "ht_mismatch"), ("SCALES_OFFSET", "ht_mismatch"))
]
