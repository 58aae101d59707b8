/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines in NCCL's format, steered by NCCL's variables:
 *
 *     host:pid:tid [device] NCCL WARN EP text
 *
 * NCCL_DEBUG        VERSION, WARN, INFO, ABORT, TRACE; unset: nothing is printed
 * NCCL_DEBUG_SUBSYS comma-separated subsystems of INFO lines, ^ in front: all but these.
 *                   EP stands for all of this library's.
 * NCCL_DEBUG_FILE   file instead of standard output; %h host name, %p process id, %% percent
 */
#ifndef EP_CORE_LOG_H
#define EP_CORE_LOG_H

#include <stdbool.h>
#include "core/util.h"

enum ep_log_level {
	EP_LOG_NONE = 0,
	EP_LOG_VERSION,
	EP_LOG_WARN,
	EP_LOG_INFO,
	EP_LOG_ABORT,
	EP_LOG_TRACE
};

/* NCCL's bits. */
enum ep_log_subsys {
	EP_LOG_INIT = 0x1,
	EP_LOG_COLL = 0x2,
	EP_LOG_P2P = 0x4,
	EP_LOG_SHM = 0x8,
	EP_LOG_NET = 0x10,
	EP_LOG_GRAPH = 0x20,
	EP_LOG_TUNING = 0x40,
	EP_LOG_ENV = 0x80,
	EP_LOG_ALLOC = 0x100,
	EP_LOG_CALL = 0x200,
	EP_LOG_PROXY = 0x400,
	EP_LOG_NVLS = 0x800,
	EP_LOG_BOOTSTRAP = 0x1000,
	EP_LOG_REG = 0x2000,
	EP_LOG_PROFILE = 0x4000,
	EP_LOG_RAS = 0x8000,
	EP_LOG_ALL = ~0
};

struct ep_log_config {
	enum ep_log_level level;
	unsigned int subsys;
	char file[4096]; /* "" for standard output */
};

/* From the three variables' values (NULL: unset). Pure; the logger itself reads them once. */
void ep_log_configure(struct ep_log_config *config, const char *debug, const char *subsys,
		      const char *file, const char *hostname, int pid);

/* Whether a line of this level and subsystem would be printed. WARN ignores the subsystem. */
bool ep_log_enabled(enum ep_log_level level, unsigned int subsys);

/*
 * Texts quote the environment, peers and other users: what is not printable ASCII becomes '?', so
 * that a line stays one and no terminal takes a part of it for a command (in UTF-8, too, some bytes
 * above 0x7f are one).
 */
void ep_log_flatten(char *text);

void ep_log(enum ep_log_level level, unsigned int subsys, const char *fmt, ...) EP_PRINTF(3, 4);

/*
 * Lines go to `sink` from now on, in a library whose caller has a logger of its own; it decides
 * what is printed, or returns false: then the line goes where it would without. NULL: no longer.
 */
typedef bool ep_log_sink_fn(enum ep_log_level level, unsigned int subsys, const char *text);
void ep_log_to(ep_log_sink_fn *sink);

/* The device in log lines. NULL in programs without core/cuda.c, which sets it: they print -1. */
extern int (*ep_log_device)(void);
/* The device in lines of this thread, which has none of its own; -1: it is asked as others are. */
extern __thread int ep_log_thread_device;

/* The printer of a line. */
struct ep_log_origin {
	const char *hostname;
	int pid;
	long tid;
	int device;
};

/* The line without its newline, for ep_log and for tests. Returns its length. */
int ep_log_format(char *line, size_t size, enum ep_log_level level,
		  const struct ep_log_origin *origin, const char *text);

#define EP_WARN(...) ep_log(EP_LOG_WARN, EP_LOG_ALL, __VA_ARGS__)
#define EP_INFO(subsys, ...)                                                                       \
	do {                                                                                       \
		if (ep_log_enabled(EP_LOG_INFO, subsys)) {                                         \
			ep_log(EP_LOG_INFO, subsys, __VA_ARGS__);                                  \
		}                                                                                  \
	} while (0)

/*
 * ---- NCCL's logger, for both libraries of a process ----
 *
 * Lends libnccl_ep.so what libnccl-net-ep.so has from NCCL, in a process that has both: NCCL's
 * logger. The first exports a function, the second looks for it by name.
 */

#define EP_NCCL_LOGGER_PLUGIN "libnccl-net-ep.so"
#define EP_NCCL_LOGGER_NAME "nccl_net_ep_log"

/*
 * The function of that name. It stays callable, as the plugin is never unmapped; false: NCCL has
 * given the plugin no logger, or has finalized it.
 */
typedef bool ep_nccl_logger_fn(int level, unsigned int subsys, const char *text);

/* Log lines go to NCCL's logger from now on, if the plugin is loaded and has it. */
void ep_nccl_logger_use(void);

#endif
