/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's variables that count here, and NCCL's configuration files, read as NCCL reads them. */
#include "tools/nccl_env.h"

#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SYSTEM_FILE "/etc/nccl.conf"
#define MAX_TEXT 1024 /* NCCL cuts names and values here */
#define MAX_LINE 4095
#define MAX_FILE 1048576u

const struct ep_nccl_var ep_nccl_var_table[] = {
	{ "NCCL_CONF_FILE", "(none)", "read before /etc/nccl.conf; without it ~/.nccl.conf" },
	{ "NCCL_TOPO_FILE", "(none)", "topology of this machine, NCCL or hwloc XML" },
	{ "HWLOC_XMLFILE", "(none)", "the same, if NCCL_TOPO_FILE is not set" },
	{ "NCCL_IB_HCA", "(all)", "[^][=]device[:port],... to use or not" },
	{ "NCCL_NET_GDR_LEVEL", "SYS", "farthest NIC that may access GPU memory" },
	{ "NCCL_SOCKET_IFNAME", "(any)",
	  "interfaces of NCCL's bootstrap; RDMA does not look at it" },
	{ "NCCL_P2P_DISABLE", "0",
	  "1 is no way to do without peer access here: ranks of a node write each other's memory, "
	  "unless it is in the host (NCCL_EP_MEMORY=host), or NCCL_EP_NODE_SIZE=1 makes each a node; "
	  "a WARN says so" },
	{ "NCCL_P2P_LEVEL", "(any)", "the same of LOC or 0; nothing else of it counts" },
	{ "NCCL_NVLS_ENABLE", "(allowed)", "0: no NVLink multicast, whatever NCCL_EP_NVLS says" },
	{ "NCCL_DEBUG", "(none)", "VERSION, WARN, INFO, ABORT, TRACE" },
	{ "NCCL_DEBUG_SUBSYS", "(default)", "subsystems of INFO lines" },
	{ "NCCL_DEBUG_FILE", "(stdout)", "where log lines go" },
};

const int ep_nccl_vars = sizeof(ep_nccl_var_table) / sizeof(ep_nccl_var_table[0]);

struct entry {
	struct entry *next;
	const char *file;
	char name[];
};

static struct entry *entries;
static char user_file[PATH_MAX];

static void remember(const char *name, const char *file)
{
	size_t len = strlen(name) + 1;
	struct entry *e = malloc(sizeof(*e) + len);

	if (e) {
		e->next = entries;
		e->file = file;
		memcpy(e->name, name, len);
		entries = e;
	}
}

/* NAME=value with nothing around them; lines that are not are passed over. */
static void load_line(char *line, const char *file)
{
	char *equals;

	if (*line && line[strlen(line) - 1] == '\r') {
		line[strlen(line) - 1] = '\0';
	}
	equals = strchr(line, '=');
	if (*line == '#' || !equals || equals == line) {
		return;
	}
	*equals = '\0';
	if (strlen(line) >= MAX_TEXT) {
		line[MAX_TEXT - 1] = '\0';
	}
	if (strlen(equals + 1) >= MAX_TEXT) {
		equals[MAX_TEXT] = '\0';
	}
	if (!getenv(line) && setenv(line, equals + 1, 0) == 0) {
		remember(line, file);
	}
}

/*
 * Returns the text of a file, followed by 0. NULL: there is none, or it is no file of settings,
 * which is said.
 */
static char *read_text(const char *file, size_t *len)
{
	/* O_NONBLOCK: a FIFO must not hang the program. */
	int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	char *text = calloc(1, MAX_FILE + 2);
	size_t bytes = 0;
	ssize_t n = fd < 0 || !text ? 0 : 1;
	struct stat st;

	if (n && (fstat(fd, &st) || !S_ISREG(st.st_mode))) {
		fprintf(stderr, "%s is not a regular file and does not count here\n", file);
		n = -1;
	}
	while (n > 0 && bytes <= MAX_FILE) {
		n = read(fd, text + bytes, MAX_FILE + 1 - bytes);
		bytes += n > 0 ? (size_t)n : 0;
	}
	if (bytes > MAX_FILE) {
		fprintf(stderr, "%s is longer than %u bytes and does not count here\n", file,
			MAX_FILE);
		n = -1;
	}
	if (fd >= 0) {
		close(fd);
	}
	if (fd < 0 || n < 0) {
		free(text);
		return NULL;
	}
	*len = bytes;
	return text;
}

static void load(const char *file)
{
	size_t len = 0;
	char *text = read_text(file, &len), *line = text, *next;

	for (; line; line = next) {
		next = memchr(line, '\n', (size_t)(text + len - line));
		if (next) {
			*next++ = '\0';
		}
		line[strnlen(line, MAX_LINE)] = '\0';
		load_line(line, file);
	}
	free(text);
}

void ep_conf_load(void)
{
	const char *own = getenv("NCCL_CONF_FILE");
	const struct passwd *user;

	if (own && *own) {
		snprintf(user_file, sizeof(user_file), "%s", own);
		load(user_file);
	} else {
		user = getpwuid(getuid()); /* whose home need not be $HOME */
		if (user && user->pw_dir) {
			snprintf(user_file, sizeof(user_file), "%s/.nccl.conf", user->pw_dir);
			load(user_file);
		}
	}
	load(SYSTEM_FILE);
}

const char *ep_conf_source(const char *name)
{
	for (const struct entry *e = entries; e; e = e->next) {
		if (strcmp(e->name, name) == 0) {
			return e->file;
		}
	}
	return "environment";
}
