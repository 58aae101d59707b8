# SPDX-License-Identifier: Apache-2.0
"""Mutants of what talks to NICs: device/mlx5, plugin/gda, plugin/net. Above each: the promise that it breaks.

Three others are not here, since they change nothing. The offset of the queues' DMA-BUF is always 0:
slabs lie at 2 MiB. Ends of mixed tiers agree on the same signals with or without the rule in gda/connect.c.
SYNC_MEMOPS concerns synchronous copies and fills, and queues only see those of a stream that the host waits for.
"""

MUTANTS = [
    # ---- posting by GPUs ----
    # The record of a doorbell is in memory before the register is written, which may be mapped write-combining.
    # (The virtual cluster's NIC reads ordinary memory, which x86 stores to in order: the code is looked at.)
    {"name": "store_fence", "file": "plugin/gda/proxy.c",
     "old": ("\t__atomic_store_n(&queue->dbr->send, ep_mlx5_dbr_value(next), __ATOMIC_RELEASE);\n"
             "\tstore_fence();\n"),
     "new": "\t__atomic_store_n(&queue->dbr->send, ep_mlx5_dbr_value(next), __ATOMIC_RELEASE);\n",
     "tests": ["library_vcluster"]},
    # The doorbell follows its record.
    {"name": "db_nofence", "file": "device/mlx5/qp.h",
     "old": ("ep_mlx5_dbr_value(next));\n"
             "\tep_release_fence_sys();"),
     "new": "ep_mlx5_dbr_value(next));", "tests": ["host_gpu", "posting"]},
    # The doorbell record follows the WQEs that it counts.
    {"name": "dbr_nofence", "file": "device/mlx5/qp.h",
     "old": ("\tif (qp->in_host) {\n"
             "\t\tep_release_fence_sys();\n"
             "\t} else {\n"
             "\t\tep_release_fence_gpu();\n"
             "\t}\n"),
     "new": "", "tests": ["host_gpu", "posting"]},
    # Each quarter of a queue has a completion, so that its room comes back.
    {"name": "quarter_silent", "file": "device/mlx5/qp.h",
     "old": ("(post->depth / 4 - 1)) == 0) {\n"
             "\t\tsignaled = true;"),
     "new": ("(post->depth / 4 - 1)) == 0) {\n"
             "\t\tsignaled |= false;"),
     "tests": ["failures", "posting"]},
    # A signal that is an atomic comes behind the data where the NIC places atomics in any order.
    {"name": "atomic_unfenced", "file": "device/mlx5/mlx5_layout.h",
     "old": "return tier == EP_MLX5_TIER_OOO_ALL ? EP_MLX5_FM_FENCE : EP_MLX5_FM_NONE;",
     "new": "return EP_MLX5_FM_NONE;", "tests": ["host_gpu_tier_2", "golden"]},
    # A signal that is a WRITE comes behind the data where the NIC places WRITEs in any order.
    {"name": "write_weak", "file": "device/mlx5/mlx5_layout.h",
     "old": "return avoid_atomics ? EP_MLX5_SIGNAL_WRITE_STRONG : EP_MLX5_SIGNAL_ATOMIC;",
     "new": "return avoid_atomics ? EP_MLX5_SIGNAL_WRITE : EP_MLX5_SIGNAL_ATOMIC;",
     "tests": ["host_gpu_one_atomic", "host_gpu"]},
    # The doorbell names the index behind the last WQE.
    {"name": "db_last", "file": "device/mlx5/wqe.h",
     "old": ("ep_be32(((uint32_t)next & 0xffff) << 8);\n"
             "}"),
     "new": ("ep_be32(((uint32_t)(next - 1) & 0xffff) << 8);\n"
             "}"),
     "tests": ["golden", "host_gpu"]},
    # The doorbell record counts in 16 bits.
    {"name": "dbr_wide", "file": "device/mlx5/wqe.h",
     "old": "return ep_be32((uint32_t)next & 0xffff);",
     "new": "return ep_be32((uint32_t)next);", "tests": ["golden", "host_gpu_alone"]},
    # ---- the host side of that ----
    # Memory of a peer has a key of each of its NICs.
    {"name": "gda_rkey", "file": "plugin/gda/memory.c",
     "old": "all[p].rkey[n][i]", "new": "all[p].rkey[0][i]", "tests": ["host_gpu_two_nics"]},
    # The bus leaves signals and packets in their order.
    {"name": "signals_relaxed", "file": "plugin/gda/memory.c",
     "old": "bool relaxed = i == EP_MLX5_REGION_HEAP && g->env.relaxed;",
     "new": "bool relaxed = g->env.relaxed;", "tests": ["host_gpu_tier_0", "host_gpu"]},
    # Queues lie at offsets of their umem that the NIC can name.
    {"name": "umem_pages", "file": "plugin/gda/memory.c",
     "old": ("(uint64_t)sysconf(_SC_PAGESIZE),\n"
             "\t};"),
     "new": ("UINT64_MAX,\n"
             "\t};"),
     "tests": ["host_gpu", "host_gpu_host"]},
    # By plain verbs, a WRITE that is a signal waits until the data is there.
    {"name": "proxy_hasty", "file": "plugin/gda/proxy.c",
     "old": "== EP_MLX5_FM_STRONG && index != queue->completed",
     "new": "== EP_MLX5_FM_STRONG && index > queue->completed + 100000", "tests": ["host_cpu_proxy_one_atomic"]},
    # A NIC that reports a fatal error is named.
    {"name": "device_fatal", "file": "plugin/rdma/nic.c",
     "old": "IBV_EVENT_DEVICE_FATAL, EP_NIC_DEVICE_FAILED", "new": "IBV_EVENT_DEVICE_FATAL, EP_NIC_ADDRESS",
     "tests": ["host_device_cpu_proxy", "host_device_gpu", "lost_device"]},
    # ... also where what it has flushed was seen first.
    {"name": "device_late", "file": "plugin/gda/watch.c",
     "old": "} else if (g->vague[peer]) {", "new": "} else if (0) {", "tests": ["causes"]},
    # The doorbell page is one that every machine has: not cached, rather than write-combining.
    {"name": "uar_kind", "file": "plugin/gda/memory.c",
     "old": "#define EP_GDA_UAR_NC 1u", "new": "#define EP_GDA_UAR_NC 0u", "tests": ["host_gpu_no_wc"]},
    # A queue pair of a bond is told its member again when it is connected.
    {"name": "lag_once", "file": "plugin/gda/queue.c",
     "old": "\tlag_repeat(queue);\n",
     "new": "\tif (0) {\n\t\tlag_repeat(queue);\n\t}\n", "tests": ["host_gpu_bond_late"]},
    # ... and when it learns its peer, where the device says so.
    {"name": "lag_rtr", "file": "plugin/gda/queue.c",
     "old": "\tif (queue->nic->lag.init2rtr) {", "new": "\tif (0) {", "tests": ["commands"]},
    # ... by verbs, too.
    {"name": "lag_verbs", "file": "plugin/gda/queue.c",
     "old": "\tverbs_lag(queue);\n",
     "new": "\tif (0) {\n\t\tverbs_lag(queue);\n\t}\n", "tests": ["host_cpu_proxy_bond_late"]},
    # Ranks of one place in all nodes are spread over the members.
    {"name": "lag_spread", "file": "plugin/gda/devx.c",
     "old": "peer % node + peer / node", "new": "peer % node", "tests": ["commands"]},
    # The rate of a bond is that of the ports of its own NIC.
    {"name": "bond_slot", "file": "topo/sysfs.c",
     "old": "if (!at[0] || strcmp(at, slot) != 0) {", "new": "if (!at[0]) {", "tests": ["sysfs"]},
    # ... and of one of them, if only that carries anything.
    {"name": "bond_backup", "file": "topo/sysfs.c",
     "old": "(!active[0] || strcmp(active, member) == 0) &&", "new": "", "tests": ["sysfs"]},
    # The topology has the same rate of it.
    {"name": "bond_live", "file": "topo/machine.c",
     "old": "port->layer == EP_TOPO_LINK_ETHERNET, 0);", "new": "false, 0);", "tests": ["topo-live"]},
    # What is faster than NDR is known by the kernel's file alone.
    {"name": "rate_unread", "file": "topo/sysfs.c",
     "old": "uint32_t mbps = read_rate(class_dir, device, port);",
     "new": "uint32_t mbps = 0 * read_rate(class_dir, device, port);", "tests": ["sysfs", "topo-live"]},
    # A NIC sends with the address that its queue pairs were made for, also when the port has lost it.
    {"name": "address_held", "file": "plugin/gda/queue.c",
     "old": "return nic->held != NULL;",
     "new": "ep_gda_address_release(nic);\n\t\treturn true;", "tests": ["host_address_gpu"]},
    # A peer that has another hardware address is told of.
    {"name": "address_moved", "file": "plugin/gda/watch.c",
     "old": "\t\taddress_find_moved(g);\n", "new": "", "tests": ["host_neighbour_gpu"]},
    # NICs are not asked about queues that have nothing late,
    {"name": "ask_all", "file": "plugin/gda/watch.c",
     "old": "return left && left <= queue->gda->depth;",
     "new": "return left <= queue->gda->depth;", "tests": ["late", "host_gpu_questions"]},
    # but about those that have,
    {"name": "ask_none", "file": "plugin/gda/watch.c",
     "old": "\t\tqueue->due = true;\n", "new": "\t\tqueue->due = false;\n", "tests": ["late"]},
    # and an error in GPU memory that no kernel waits for is found.
    {"name": "late_error", "file": "plugin/gda/watch.c",
     "old": "} else if (cqe.op_own >> 4 != EP_MLX5_CQE_INVALID) {\n\t\treturn true;",
     "new": "} else if (cqe.op_own >> 4 != EP_MLX5_CQE_INVALID) {\n\t\treturn false;", "tests": ["host_silent_gpu"]},
    # Beyond the standard a NIC does what both ends can. One end's firmware is given the other's word as it came,
    # and finds that out;
    {"name": "ece_and", "file": "plugin/gda/connect.c",
     "old": "ep_rc_ece_received(&queue->nic->ece, &peer->ece[queue->remote_nic]).options;",
     "new": "ep_rc_ece_received(&queue->nic->ece, &peer->ece[queue->remote_nic]).options & queue->nic->ece.options;",
     "tests": ["host_gpu_ece", "host_cpu_proxy_ece"]},
    # the other end is told;
    {"name": "ece_own", "file": "plugin/gda/connect.c",
     "old": "\t\tqueue->ece = word;\n", "new": "\t\tqueue->ece = word ? queue->nic->ece.options : 0;\n",
     "tests": ["host_gpu_ece"]},
    {"name": "ece_verbs", "file": "plugin/rdma/rc_qp.c",
     "old": "path->ece.options ? rc_ece_set(nic, qp, &path->ece) : 0;",
     "new": "path->ece.options && 0 ? rc_ece_set(nic, qp, &path->ece) : 0;", "tests": ["inside", "host_auto_ece"]},
    # and where firmware refuses the word, both do without.
    {"name": "ece_insists", "file": "plugin/gda/queue.c",
     "old": "if (!queue->ece || queue->ece_agreed) {", "new": "if (1) {", "tests": ["host_gpu_ece_refused"]},
    {"name": "ece_insists_verbs", "file": "plugin/rdma/rc_qp.c",
     "old": "!path->ece.options || path->ece_agreed ||", "new": "!path->ece.options || 1 || path->ece_agreed ||",
     "tests": ["inside_odd_own_ece", "host_cpu_proxy_ece_refused"]},
    # Both ends of a connection use the smaller MTU.
    {"name": "mtu_own", "file": "plugin/gda/connect.c",
     "old": "(uint32_t)ep_min_u64(queue->nic->base.end.mtu, end->mtu);", "new": "queue->nic->base.end.mtu + 0 * end->mtu;",
     "tests": ["host_gpu_mtu"]},
    # A queue that kernels have given up is ended, so that the NIC no longer reads their memory.
    {"name": "no_halt", "file": "plugin/gda/watch.c",
     "old": "\t\tep_gda_queue_halt(queue);\n", "new": "", "tests": ["host_stuck_gpu", "host_stuck_cpu_db"]},
    # A range takes no address of the other family.
    {"name": "range_any_family", "file": "plugin/rdma/port.c",
     "old": "return family && gid_in_range(gid->raw, env)", "new": "return gid_in_range(gid->raw, env)",
     "tests": ["topo-rdma-gid"]},
    # Of two link layers that are equal all machines take the same: of each GPU's, and of the machine's.
    {"name": "layer_tie", "file": "topo/choose_nics.c",
     "old": "\treturn sum[ib] >= sum[eth] ? ib : eth;\n", "new": "\treturn sum[ib] > sum[eth] ? ib : eth;\n",
     "tests": ["topo-choose"]},
    {"name": "layer_tie_votes", "file": "topo/choose_nics.c",
     "old": "(votes[ib] == votes[eth] && sum[ib] >= sum[eth])",
     "new": "(votes[ib] == votes[eth] && sum[ib] > sum[eth])", "tests": ["topo-choose"]},
    # A port without a known speed does not stand against one that has a speed.
    {"name": "no_speed_near", "file": "topo/choose_nics.c",
     "old": "may[u] = !known || usable_at(usable, u)->mbps;", "new": "may[u] = known || true;",
     "tests": ["topo-choose", "topo-tables"]},
    # A file that reports no size is read to its end.
    {"name": "size_believed", "file": "topo/xml.c",
     "old": "\twhile (*data && n > 0) {\n", "new": "\twhile (*data && n > 0 && used < hint) {\n", "tests": ["topo-fuzz"]},
    # What a file denies a NIC stays denied on the machine that the file is for.
    {"name": "denied_live", "file": "topo/merge.c",
     "old": "\t\tnic->no_gdr = denied[i];\n", "new": "\t\t(void)denied[i];\n", "tests": ["topo-live"]},
    # A user's file of settings is where NCCL looks for it.
    {"name": "conf_home", "file": "tools/nccl_env.c",
     "old": "user = getpwuid(getuid());", "new": "user = &(struct passwd){ .pw_dir = getenv(\"HOME\") };",
     "tests": ["topo-conf"]},
    # A GPU whose NUMA node has no NIC takes one of its socket, on this machine, by a file and in hwloc's.
    {"name": "socket_crossed", "file": "topo/choose_nics.c",
     "old": "topo->socket[a] && topo->socket[a] == topo->socket[b];", "new": "topo->socket[a] == 0xffff;",
     "tests": ["topo-machine", "topo-tables"]},
    {"name": "socket_file", "file": "topo/merge.c",
     "old": "memcpy(file->socket, live->socket, sizeof(file->socket));", "new": "(void)file;", "tests": ["topo-machine"]},
    # Ports of many virtual functions have room, and what has none is said to be left out.
    {"name": "ports_few", "file": "plugin/rdma/rdma.h",
     "old": "#define EP_PORT_MAX 256", "new": "#define EP_PORT_MAX 64", "tests": ["topo-rdma-ports"]},
    # hwloc is not asked while it would show a machine that it makes up.
    {"name": "synthetic_taken", "file": "topo/machine.c",
     "old": '\t\t{ "HWLOC_SYNTHETIC", "" },\n', "new": "", "tests": ["topo-live"]},
    # Of the kernel's log a report has what concerns NICs and GPUs.
    {"name": "report_kernel", "file": "tools/ep_report.sh",
     "old": '"(^|[^[:alnum:]])($words)"', "new": '"$words"', "tests": ["topo-report"]},
    # The manual says of each variable of NCCL's transports whether the plugin reads it.
    {"name": "unread_undocumented", "file": "doc/man/nccl-net-ep.7",
     "old": ".BR NCCL_IB_MERGE_VFS\n", "new": ".B functions\n", "tests": ["manual"]},
    {"name": "unread_read", "file": "plugin/rdma/env.c",
     "old": "\"NCCL_IB_PKEY\"", "new": "\"NCCL_IB_MERGE_VFS\"", "tests": ["manual"]},
    # A partition key is found by its value, without the bit of the kind of membership.
    {"name": "pkey_bit", "file": "plugin/rdma/nic.c",
     "old": "(key & 0x7fff) == (env->pkey_value & 0x7fff)", "new": "key == env->pkey_value", "tests": ["inside_pkey"]},
    # ... and one that is not there is an error.
    {"name": "pkey_any", "file": "plugin/rdma/nic.c",
     "old": "*pkey = env->pkey_value < 0 ? nic_pkey(nic, env->pkey) : 0;",
     "new": "*pkey = nic_pkey(nic, env->pkey);", "tests": ["host_refused_no_pkey_value", "inside_pkey"]},
    # ---- the network plugin ----
    # A flush goes by each port that data may have come from.
    {"name": "flush_first", "file": "plugin/net/p2p_flush.c",
     "old": "\tuint32_t ports = flush_ports(c), i;",
     "new": "\tuint32_t ports = flush_ports(c) & 1, i;", "tests": ["ports", "merged_flush"]},
    # A long message goes ahead of its notice where packets find ways of their own.
    {"name": "plain_limit", "file": "plugin/net/p2p_data.c",
     "old": "bool record = message->size > c->plain_limit || size > most;",
     "new": "bool record = size > most;", "tests": ["notice", "notice_ib"]},
    # A signal comes behind what was read or added before it.
    {"name": "gin_unfenced", "file": "plugin/net/gin.c",
     "old": "wr[n].send_flags = gin->mesh->dev->nic.fences ? IBV_SEND_FENCE : 0;",
     "new": "wr[n].send_flags = 0;", "tests": ["gin_order", "gin_tier2"]},
    # Memory that has to be in order is.
    {"name": "strict_ignored", "file": "plugin/net/memory.c",
     "old": "(ep_net_env()->relaxed && !mem->strict ? IBV_ACCESS_RELAXED_ORDERING : 0)",
     "new": "(ep_net_env()->relaxed ? IBV_ACCESS_RELAXED_ORDERING : 0)", "tests": ["gin", "gin_ib"]},
    # A receiver has as many slots again as its sender was told of.
    {"name": "slots_lost", "file": "plugin/net/p2p_completions.c",
     "old": "c->slots.acked += number;", "new": "c->slots.acked += number / 2;", "tests": ["ahead", "traffic"]},
    # What completes late is not taken for work of the queue pair that has the number now.
    {"name": "old_generations", "file": "plugin/net/p2p_completions.c",
     "old": "if (qp >= c->nqps || EP_NET_WR_GENERATION(wc[i].wr_id) == c->qp[qp].generation) {",
     "new": "if (qp >= c->nqps || 1) {", "tests": ["ports", "troubles", "pieces"]},
    # ... nor does it take up the room of what the new one completes.
    {"name": "late_room", "file": "plugin/net/p2p_paths.c",
     "old": "\tEP_CHECK(port_empty(c, l));\n", "new": "", "tests": ["ports"]},
    # Completion queues have room for all that their queue pairs can complete.
    {"name": "cqe_limit", "file": "plugin/net/p2p_qp.c",
     "old": "\t\tboth = ep_min_u64(", "new": "\t\t(void)ep_min_u64(", "tests": ["ports"]},
    # The failure of a device is no overrun of its completion queue.
    {"name": "fatal_overrun", "file": "plugin/net/p2p_calls.c",
     "old": " &&\n\t\t    !ep_net_dev_broken(c->local[i].dev)) {\n", "new": ") {\n",
     "tests": ["troubles"]},
    # A receiver that is not ready is asked again, as often as it takes.
    {"name": "rnr_once", "file": "plugin/rdma/rdma.h",
     "old": "#define EP_RC_RNR_RETRY 7", "new": "#define EP_RC_RNR_RETRY 0", "tests": ["inside", "traffic"]},
    # Where the kernel does not find a peer at first, queue pairs of verbs ask again, and DevX's do.
    {"name": "modify_once", "file": "plugin/rdma/rc_qp.c",
     "old": "!once && ep_rc_retry(", "new": "once && ep_rc_retry(",
     "tests": ["host_cpu_proxy_late_rtr", "sizes_found_late"]},
    {"name": "address_once", "file": "plugin/gda/queue.c",
     "old": "!ah && env && ", "new": "!ah && !env && ", "tests": ["host_gpu_late_rtr"]},
    # A failure that polling has noted closes the path.
    {"name": "failure_dropped", "file": "plugin/net/p2p_paths.c",
     "old": "EP_CHECK(path_failed(c, i, &wc));", "new": "(void)wc;",
     "tests": ["fails_lost", "counts", "merged_all"]},
    # The error of a connection, and of a mesh, says what the NIC reports.
    {"name": "status_unreported", "file": "plugin/net/queue.c",
     "old": "s ? s->text : \"unknown failure\"", "new": "\"unknown failure\"",
     "tests": ["gin_lost_retry", "lost_access"]},
    # What a NIC has of a peer that is gone is waited for.
    {"name": "no_grace", "file": "plugin/net/net.h",
     "old": "#define EP_NET_GRACE_NS 1000000000ull", "new": "#define EP_NET_GRACE_NS 1ull",
     "tests": ["troubles"]},
    # A port that is down is known before the retries of its queue pairs are over.
    {"name": "down_is_up", "file": "plugin/rdma/nic.c",
     "old": "IBV_EVENT_PORT_ERR, EP_NIC_PORT_DOWN", "new": "IBV_EVENT_PORT_ERR, EP_NIC_PORT_UP",
     "tests": ["lost_over_fast", "host_port_gpu"]},
    # Files of the kernel end in a newline.
    {"name": "line_end", "file": "topo/sysfs.c",
     "old": "buf[strcspn(buf, \"\\n\")] = '\\0';", "new": "", "tests": ["gda/sysfs"]},
    # The bus leaves slots and records in their order.
    {"name": "slots_relaxed", "file": "plugin/net/p2p_setup.c",
     "old": "IBV_ACCESS_LOCAL_WRITE | EP_NET_ACCESS,",
     "new": "IBV_ACCESS_LOCAL_WRITE | EP_NET_ACCESS | IBV_ACCESS_RELAXED_ORDERING,",
     "tests": ["sizes_v8", "sizes_split", "sizes_drop", "sizes"]},
    # A receive has a key of each port.
    {"name": "slot_rkey", "file": "plugin/net/p2p_calls.c",
     "old": "slot[k].rkey[p] = region[k]->rkey[p];",
     "new": "slot[k].rkey[p] = region[k]->rkey[0];", "tests": ["sizes_merged", "traffic_merged"]},
    # Queue pairs get what both NICs can beyond the standard.
    {"name": "no_ece", "file": "plugin/net/p2p_qp.c",
     "old": "\t\trc_path.ece = ep_rc_ece_received(&l->ece, &remote->ece);\n", "new": "", "tests": ["inside"]},
    # Packets pass more than one router.
    {"name": "one_hop", "file": "plugin/rdma/rdma.h",
     "old": "#define EP_RC_HOPS 255", "new": "#define EP_RC_HOPS 1", "tests": ["inside"]},
    # A part of a DMA-BUF is that part.
    {"name": "dmabuf_offset", "file": "plugin/net/memory.c",
     "old": ".fd = mem->fd, .offset = mem->offset };",
     "new": ".fd = mem->fd, .offset = 0 };", "tests": ["sizes_v8", "gin"]},
    # Packets have the service level that was asked for.
    {"name": "no_level", "file": "plugin/rdma/rc_qp.c",
     "old": ".sl = path->sl,", "new": ".sl = 0,", "tests": ["inside", "inside_levels"]},
    # Silent connections make room for the next one.
    {"name": "silent_stays", "file": "plugin/net/handshake.c",
     "old": ">= EP_NET_SILENT_NS ? oldest : NULL;",
     "new": ">= 30 * EP_NET_SILENT_NS ? oldest : NULL;", "tests": ["gin_misuse", "setup"]},
    # ... but a peer that is slow to send keeps its place for a second.
    {"name": "slow_peer", "file": "plugin/net/net.h",
     "old": "#define EP_NET_SILENT_NS 1000000000ull", "new": "#define EP_NET_SILENT_NS 1ull", "tests": ["setup"]},
    # An interface whose cable is out is not where peers meet.
    {"name": "iface_up", "file": "plugin/net/socket.c",
     "old": "(ifaddr->ifa_flags & IFF_RUNNING)", "new": "(ifaddr->ifa_flags & IFF_UP)", "tests": ["namespace"]},
    # A peer to whom there is no route yet is dialed again.
    {"name": "dial_route", "file": "plugin/net/socket.c",
     "old": "error == ENETUNREACH ||", "new": "", "tests": ["namespace"]},
    # ... but no longer than the set-up of a connection may take.
    {"name": "dial_limit", "file": "plugin/net/socket.c",
     "old": "return ep_now_ns() > dialing->until", "new": "return false", "tests": ["namespace"]},
    # NICs keep what is registered while a child of fork() lives.
    {"name": "no_fork_init", "file": "plugin/rdma/verbs.c",
     "old": "\tint error = (verbs->ibv_fork_init)();\n", "new": "\tint error = 0;\n", "tests": ["fork"]},
    # Ports that a context joins can reach each other.
    {"name": "link_unchecked", "file": "plugin/net/gin.c",
     "old": "if (r != mesh->rank &&\n\t\t    !ep_nic_path_check", "new": "if (r > mesh->nranks &&\n\t\t    !ep_nic_path_check", "tests": ["gin_apart"]},
    # A rank whose NIC gives up tells the others,
    {"name": "lost_unsent", "file": "plugin/net/gin.c",
     "old": "\tep_net_mesh_lose(gin->mesh, gin->failed.text);\n", "new": "", "tests": ["gin_lost_retry"]},
    # who hear it.
    {"name": "lost_unheard", "file": "plugin/net/gin.c",
     "old": "result = ep_net_mesh_check(gin->mesh);", "new": "result = ncclSuccess;", "tests": ["gin_lost_retry"]},
    # Ranks that do not gather the same get an error,
    {"name": "gather_mark", "file": "plugin/net/coll.c",
     "old": "\tg->mark = g->mark * 2654435761u", "new": "\tg->mark = 2654435761u", "tests": ["coll_differ"]},
    # what they gathered is flushed by all ports that brought it,
    {"name": "gather_flush", "file": "plugin/net/coll.c",
     "old": "result = ep_net_iflush(c->recv[r], 1,", "new": "result = ep_net_iflush(c->recv[0], 1,", "tests": ["ports"]},
    # and a rank that fails notifies the others.
    {"name": "lost_gather", "file": "plugin/net/coll.c",
     "old": "\t\tep_error_get(NULL, &c->failed);\n\t\tcoll_leave(c);\n", "new": "\t\tep_error_get(NULL, &c->failed);\n", "tests": ["coll_lost_retry"]},
    # Rails and planes of NCCL_IB_HCA reach NCCL,
    {"name": "plane_zero", "file": "plugin/net/plugin.c",
     "old": "(nic->nports > 1 ? planes : nic->dev[0]->plane)",
     "new": "(nic->nports > 1 ? planes : 0)", "tests": ["tables", "merged_rails"]},
    # and a merged NIC has a rail if all its ports have it.
    {"name": "rail_first", "file": "plugin/net/plugin.c",
     "old": "rail = nic->dev[i]->rail == rail ? rail : -1;",
     "new": "rail = nic->dev[0]->rail;", "tests": ["merged_rails"]},
    # NCCL's own GIN is not shadowed by the plugin's.
    {"name": "gin_shadow", "file": "plugin/net/gin.c",
     "old": "ep_nccl_version(&version) && version >= OWN_SINCE", "new": "ep_nccl_version(&version) && version < 0", "tests": ["tables_gin_own"]},
    # A NIC without atomics does not take GIN from the others, ...
    {"name": "atomics_all", "file": "plugin/net/gin.c",
     "old": "if (!fit) {", "new": "if (fit < n) {", "tests": ["gin_one_atomic"]},
    # ... and has no part in it.
    {"name": "atomics_none", "file": "plugin/net/gin_mesh.c",
     "old": "const char *lacks = ep_net_dev_lacks(dev);", "new": "const char *lacks = NULL;", "tests": ["gin_first_atomic"]},
    # ---- connections of the network plugin ----
    # A stage that fails is no connection.
    {"name": "connect_failed", "file": "plugin/net/p2p_setup.c",
     "old": "\tif (result == ncclSuccess) {\n\t\tresult = connect_finish", "new": "\tif (done) {\n\t\tresult = connect_finish",
     "tests": ["refused_by_receiver", "refused_by_sender"]},
    # A process listens at one address.
    {"name": "iface_again", "file": "plugin/net/handshake.c",
     "old": "ep_net_addr_own(&place->addr)", "new": "ep_net_addr_find(&place->addr)", "tests": ["namespace"]},
    # A machine that has vanished is found within minutes.
    {"name": "keepalive", "file": "plugin/net/socket.c",
     "old": "TCP_KEEPIDLE, &idle", "new": "TCP_KEEPINTVL, &idle", "tests": ["order"]},
    # Another version is refused, also where its messages have the same size.
    {"name": "any_version", "file": "plugin/net/handshake.c",
     "old": "head->version != EP_NET_VERSION || head->bytes != bytes", "new": "head->bytes != bytes", "tests": ["setup"]},
    # An error of a port names that port.
    {"name": "port_named", "file": "plugin/net/p2p_calls.c",
     "old": "ncclSystemError, ep_net_port_qp(c, i),", "new": "ncclSystemError, i,", "tests": ["ports"]},
    # A connection that NCCL has abandoned ends with its context, not with the last one.
    {"name": "abandoned", "file": "plugin/net/plugin.c",
     "old": "sweep_all(last ? NULL : ctx);", "new": "sweep_all(last ? NULL : &last);", "tests": ["setup"]},
    # The end of a context leaves connections of others in the making.
    {"name": "abandons_all", "file": "plugin/net/plugin.c",
     "old": "sweep_all(last ? NULL : ctx);", "new": "sweep_all(NULL);", "tests": ["setup"]},
    # A port that no path goes by is named, and no other one.
    {"name": "idle_port", "file": "plugin/net/p2p_fail.c",
     "old": "return EP_NET_WR_FLUSH_QP(local);", "new": "return 0;", "tests": ["ports"]},
    # What a device that broke was to read for a flush is not waited for.
    {"name": "no_give_up", "file": "plugin/net/p2p_paths.c",
     "old": "\t\t\tep_net_flushes_give_up(c, i);", "new": "\t\t\t;", "tests": ["ports"]},
    # What comes after this end has sent how much came is sent again: it does not count twice.
    {"name": "late_counts", "file": "plugin/net/p2p_completions.c",
     "old": "if (c->path && c->path[q->path].drained) {", "new": "if (false) {", "tests": ["ports"]},
    # The last path that fails is the connection's end.
    {"name": "never_lost", "file": "plugin/net/p2p_paths.c",
     "old": "if (c->open.paths == 1 && ep_net_path_is_open(c, path)) {", "new": "if (false) {", "tests": ["ports"]},
    # A port that comes back may have another address.
    {"name": "gid_old", "file": "plugin/net/p2p_paths.c",
     "old": "\tc->remote[r->remote_port].end = msg->end;\n", "new": "", "tests": ["ports"]},
    # A path that cannot come back yet does not hold NCCL's thread.
    {"name": "once_flag", "file": "plugin/net/p2p_paths.c",
     "old": ".once = true", "new": ".once = false", "tests": ["ports"]},
    # The plugin's thread leaves a closed socket alone.
    {"name": "async_skip", "file": "plugin/net/p2p_paths.c",
     "old": "\t\tep_net_async_skip(a, c->fd);", "new": "\t\t;", "tests": ["ports"]},
    # A rank that sends less than it should is named.
    {"name": "gather_sum", "file": "plugin/net/coll.c",
     "old": "receives && !s->receive && sum != s->group", "new": "false", "tests": ["ports"]},
    # A device that is opened again is as good as new.
    {"name": "broken_stays", "file": "plugin/net/device.c",
     "old": "\t\tdev->broken = 0;\n", "new": "", "tests": ["troubles"]},
    # Host memory and memory of a GPU have registrations of their own.
    {"name": "mr_gpu", "file": "plugin/net/memory.c",
     "old": "r->gpu == gpu && r->strict", "new": "r->strict", "tests": ["troubles"]},
    # A registration does not take a region that has more pages: memory of those may have gone.
    {"name": "mr_larger", "file": "plugin/net/memory.c",
     "old": "if (r->end == same.end && r->gpu", "new": "if (r->end >= same.end && r->gpu", "tests": ["troubles"]},
    # That a device has failed is seen while another thread registers memory with it.
    {"name": "events_locked", "file": "plugin/net/device.c",
     "old": "\tpthread_mutex_lock(&dev->events);\n",
     "new": ("\tif (pthread_mutex_trylock(&dev->lock) != 0) {\n\t\treturn;\n\t}\n\tpthread_mutex_unlock(&dev->lock);\n"
             "\tpthread_mutex_lock(&dev->events);\n"), "tests": ["troubles"]},
    # What is made has the address that its port has now.
    {"name": "moved_unheard", "file": "plugin/net/device.c",
     "old": "if (ask != EP_NET_AS_OPENED) {", "new": "if (0) {", "tests": ["ports"]},
    # A connection leaves out a port that is down, here or there, and takes it when it is up.
    {"name": "none_left_out", "file": "plugin/net/p2p_paths.c",
     "old": "(path_is_down(c, i) && down < c->npaths)", "new": "0", "tests": ["merged_down_ib", "merged_homeless"]},
    # ... and one over which nobody is found.
    {"name": "lost_path", "file": "plugin/net/p2p_qp.c",
     "old": "\tif (c->open.paths > 1) {\n\t\tEP_CHECK(qps_connect", "new": "\tif (0) {\n\t\tEP_CHECK(qps_connect",
     "tests": ["troubles"]},
    # A port without an address is asked for it more and more rarely.
    {"name": "never_rests", "file": "plugin/net/p2p_paths.c",
     "old": "\t\tpath_rest(r, false); /* (it may be possible later) */\n", "new": "", "tests": ["merged_homeless"]},
    # The sender does not rely on paths over which it was not found.
    {"name": "lost_crossed", "file": "plugin/net/p2p_qp.c",
     "old": "\tpaths_lose(c, peer->lost);\n\tif (c->open", "new": "\tif (c->open", "tests": ["troubles"]},
    {"name": "lost_untold", "file": "plugin/net/p2p_setup.c",
     "old": "\trep->lost = ep_net_paths_lost(c);\n", "new": "", "tests": ["merged_lost"]},
    # A connection leaves out a port that loses its address while the connection is made.
    {"name": "lost_address", "file": "plugin/net/p2p_qp.c",
     "old": "(error && !ep_net_dev_up(dev, 0));", "new": "false;", "tests": ["troubles"]},
    # A device of several is opened although its port, which is up, has no address, and does without it.
    {"name": "homeless_closed", "file": "plugin/rdma/nic.c",
     "old": "\tif (nic->even_down) {\n\t\t*result", "new": "\tif (nic->down) {\n\t\t*result", "tests": ["merged_homeless"]},
    {"name": "homeless_served", "file": "plugin/net/device.c",
     "old": "dev->ask = dev->nic.homeless ? 0 :", "new": "dev->ask =", "tests": ["merged_homeless"]},
    # What is made while a device of several has failed does without it.
    {"name": "broken_left_in", "file": "plugin/net/p2p_paths.c",
     "old": "if (path_is_broken(c, i) || (path", "new": "if ((path", "tests": ["merged_broken"]},
    {"name": "broken_untold", "file": "plugin/net/p2p_setup.c",
     "old": "c->local[i].broken ? EP_NET_BROKEN", "new": "0 ? EP_NET_BROKEN", "tests": ["merged_broken"]},
    {"name": "broken_registered", "file": "plugin/net/memory.c",
     "old": "good = r || (several && ep_net_dev_broken(dev));", "new": "good = r != NULL;",
     "tests": ["merged_broken"]},
    # A flush reads by the address that its port has.
    {"name": "flush_moved", "file": "plugin/net/p2p_flush.c",
     "old": "\t(void)ep_net_dev_address(port->dev, &end, &index);\n", "new": "", "tests": ["ports"]},
    # A port of several that is down has its partition key when it is up, wherever that is then.
    {"name": "keyless_closed", "file": "plugin/rdma/nic.c",
     "old": "if (!keyed && !nic->even_down) {", "new": "if (!keyed) {", "tests": ["merged_down_ib_pkey"]},
    {"name": "key_as_opened", "file": "plugin/net/p2p_qp.c",
     "old": "l->index.pkey, l->cq", "new": "l->dev->nic.pkey_index, l->cq", "tests": ["ports"]},
    {"name": "key_as_opened_again", "file": "plugin/net/p2p_paths.c",
     "old": "port->index.pkey, port->cq", "new": "port->dev->nic.pkey_index, port->cq", "tests": ["ports"]},
    # A port that gave no address is not asked again by each connection, ...
    {"name": "asked_by_each", "file": "plugin/net/device.c",
     "old": "return ep_now_ns() >= ask && port", "new": "return port", "tests": ["ports"]},
    # ... but when it may have one.
    {"name": "refused_address", "file": "plugin/net/device.c",
     "old": "ask, 0, __ATOMIC_RELAXED);\n\t\tbreak;\n\tcase EP_NIC_DEVICE",
     "new": "ask, dev->ask == EP_NET_AS_OPENED ? 0 : dev->ask, __ATOMIC_RELAXED);\n\t\tbreak;\n\tcase EP_NIC_DEVICE", "tests": ["ports"]},
    # ---- ranks that reach each other's memory ----
    # Ranks take a port that is up.
    {"name": "gin_down", "file": "plugin/net/gin_mesh.c",
     "old": "best < FIT_UP", "new": "best < FIT_DOWN", "tests": ["ports"]},
    # Room of the completion queue comes back.
    {"name": "gin_room", "file": "plugin/net/gin.c",
     "old": "\t\tgin->cq_room++;\n", "new": "", "tests": ["gin_few_cqes"]},
    # Ranks that are at different steps do not go on.
    {"name": "any_round", "file": "plugin/net/gin_mesh.c",
     "old": "head.round != own.round || head.number != own.number ||", "new": "head.round != own.round ||", "tests": ["gin_inside"]},
    # No two peers are the same rank.
    {"name": "joining_rank", "file": "plugin/net/gin_mesh.c",
     "old": " ||\n\t    mesh->fd[g->rank] >= 0) {", "new": ") {", "tests": ["setup"]},
    # What a dead peer's NIC has still brought is waited for.
    {"name": "gone_once", "file": "plugin/net/gin.c",
     "old": "link->gone_since && now - link->gone_since >= EP_NET_GRACE_NS", "new": "link->gone_since", "tests": ["gin_inside"]},
]
