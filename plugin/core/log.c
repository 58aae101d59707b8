/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines as NCCL prints them, into NCCL's own file, or through the logger that NCCL lends to its
 * plugins.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "core/log.h"

static const struct {
	const char *name;
	enum ep_log_level level;
} log_levels[] = {
	{ "VERSION", EP_LOG_VERSION }, { "WARN", EP_LOG_WARN },   { "INFO", EP_LOG_INFO },
	{ "ABORT", EP_LOG_ABORT },     { "TRACE", EP_LOG_TRACE },
};

static const struct {
	const char *name;
	unsigned int bits;
} log_subsystems[] = {
	{ "INIT", EP_LOG_INIT },     { "COLL", EP_LOG_COLL },   { "P2P", EP_LOG_P2P },
	{ "SHM", EP_LOG_SHM },       { "NET", EP_LOG_NET },     { "GRAPH", EP_LOG_GRAPH },
	{ "TUNING", EP_LOG_TUNING }, { "ENV", EP_LOG_ENV },     { "ALLOC", EP_LOG_ALLOC },
	{ "CALL", EP_LOG_CALL },     { "PROXY", EP_LOG_PROXY }, { "NVLS", EP_LOG_NVLS },
	{ "REG", EP_LOG_REG },       { "RAS", EP_LOG_RAS },     { "BOOTSTRAP", EP_LOG_BOOTSTRAP },
	{ "ALL", EP_LOG_ALL },       { "EP", EP_LOG_ALL },      { "PROFILE", EP_LOG_PROFILE },
};

static struct {
	pthread_once_t once;
	struct ep_log_config config;
	char hostname[256];
	int fd;
} logger = { .once = PTHREAD_ONCE_INIT };

int (*ep_log_device)(void);
__thread int ep_log_thread_device = -1;
static ep_log_sink_fn *log_sink;

void ep_log_to(ep_log_sink_fn *sink)
{
	__atomic_store_n(&log_sink, sink, __ATOMIC_RELEASE);
}

static unsigned int log_subsys_bits(const char *name, size_t n)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(log_subsystems); i++) {
		if (strlen(log_subsystems[i].name) == n &&
		    strncasecmp(log_subsystems[i].name, name, n) == 0) {
			return log_subsystems[i].bits;
		}
	}
	return 0; /* NCCL ignores names it does not know, and so do we: they may be newer ones */
}

static unsigned int log_subsys_parse(const char *text)
{
	bool invert = *text == '^';
	unsigned int mask = invert ? ~0u : 0;

	for (text += invert; *text; text += strcspn(text, ","), text += *text == ',') {
		unsigned int bits = log_subsys_bits(text, strcspn(text, ","));

		mask = invert ? mask & ~bits : mask | bits;
	}
	return mask;
}

static void log_file_expand(char *out, size_t size, const char *pattern, const char *hostname,
			    int pid)
{
	const char *p;
	size_t n = 0;

	for (p = pattern; *p && n + 1 < size; p++) {
		int added;

		if (p[0] == '%' && p[1] == 'h') {
			added = snprintf(out + n, size - n, "%s", hostname);
			p++;
		} else if (p[0] == '%' && p[1] == 'p') {
			added = snprintf(out + n, size - n, "%d", pid);
			p++;
		} else {
			p += p[0] == '%' && p[1] == '%';
			added = snprintf(out + n, size - n, "%c", *p);
		}
		n += (size_t)added;
	}
	if (*p || n >= size) {
		out[0] = '\0'; /* too long for a path: standard output */
		return;
	}
	out[n] = '\0';
}

void ep_log_configure(struct ep_log_config *config, const char *debug, const char *subsys,
		      const char *file, const char *hostname, int pid)
{
	config->level = EP_LOG_NONE;
	for (size_t i = 0; debug && i < EP_ARRAY_SIZE(log_levels); i++) {
		if (strcasecmp(debug, log_levels[i].name) == 0) {
			config->level = log_levels[i].level;
		}
	}
	config->subsys = subsys ? log_subsys_parse(subsys)
				: EP_LOG_INIT | EP_LOG_BOOTSTRAP | EP_LOG_ENV;
	config->file[0] = '\0';
	if (file && config->level > EP_LOG_VERSION) {
		log_file_expand(config->file, sizeof(config->file), file, hostname, pid);
	}
}

/*
 * NCCL may have the same file open and writes at its own offset. A duplicate of its descriptor
 * shares that offset; a second open of the file would make the two overwrite each other.
 */
static int log_find_open(const char *path)
{
	struct stat want, have;
	struct dirent *entry;
	int fd = -1;
	DIR *dir;

	if (stat(path, &want) != 0) {
		return -1;
	}
	dir = opendir("/proc/self/fd");
	if (!dir) {
		return -1;
	}
	while (fd < 0 && (entry = readdir(dir))) {
		int n = atoi(entry->d_name);

		if (entry->d_name[0] == '.' || n == dirfd(dir)) {
			continue;
		}
		if (fstat(n, &have) == 0 && have.st_dev == want.st_dev &&
		    have.st_ino == want.st_ino && (fcntl(n, F_GETFL) & O_ACCMODE) != O_RDONLY) {
			fd = fcntl(n, F_DUPFD_CLOEXEC, 0);
		}
	}
	closedir(dir);
	return fd;
}

/* A FIFO that nobody reads is not waited for (ENXIO). */
static int log_create(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
	int flags = fd < 0 ? -1 : fcntl(fd, F_GETFL);

	if (flags >= 0) {
		/* Lines to a slow reader are not lost. */
		(void)fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
	}
	return fd;
}

static void log_open(void)
{
	struct ep_log_config *config = &logger.config;

	if (gethostname(logger.hostname, sizeof(logger.hostname)) != 0) {
		strcpy(logger.hostname, "unknown");
	}
	logger.hostname[sizeof(logger.hostname) - 1] = '\0';
	logger.hostname[strcspn(logger.hostname, ".")] = '\0'; /* as NCCL prints it */
	ep_log_configure(config, getenv("NCCL_DEBUG"), getenv("NCCL_DEBUG_SUBSYS"),
			 getenv("NCCL_DEBUG_FILE"), logger.hostname, getpid());
	logger.fd = STDOUT_FILENO;
	if (config->file[0]) {
		int fd = log_find_open(config->file);

		if (fd < 0) {
			fd = log_create(config->file);
		}
		if (fd >= 0) {
			logger.fd = fd;
		}
	}
}

static bool log_wanted(enum ep_log_level level, unsigned int subsys)
{
	pthread_once(&logger.once, log_open);
	return logger.config.level >= level &&
	       (level == EP_LOG_WARN || (logger.config.subsys & subsys));
}

bool ep_log_enabled(enum ep_log_level level, unsigned int subsys)
{
	if (__atomic_load_n(&log_sink, __ATOMIC_RELAXED) && level <= EP_LOG_INFO) {
		return true; /* if the sink wants it */
	}
	return log_wanted(level, subsys);
}

int ep_log_format(char *line, size_t size, enum ep_log_level level,
		  const struct ep_log_origin *origin, const char *text)
{
	return snprintf(line, size, "%s:%d:%ld [%d] NCCL %s EP %s", origin->hostname, origin->pid,
			origin->tid, origin->device,
			level == EP_LOG_WARN    ? "WARN"
			: level == EP_LOG_TRACE ? "TRACE"
						: "INFO",
			text);
}

void ep_log_flatten(char *text)
{
	for (unsigned char *c = (unsigned char *)text; *c; c++) {
		if (*c < ' ' || *c >= 0x7f) {
			*c = '?';
		}
	}
}

void ep_log(enum ep_log_level level, unsigned int subsys, const char *fmt, ...)
{
	ep_log_sink_fn *sink = __atomic_load_n(&log_sink, __ATOMIC_ACQUIRE);
	struct ep_log_origin origin;
	int device = ep_log_thread_device;
	char text[1024], line[1400];
	va_list args;
	int n;

	if (!ep_log_enabled(level, subsys)) {
		return;
	}
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	ep_log_flatten(text);
	if ((sink && sink(level, subsys, text)) || !log_wanted(level, subsys)) {
		return;
	}
	if (device < 0 && ep_log_device) {
		device = ep_log_device();
	}
	origin = (struct ep_log_origin){ logger.hostname, getpid(), syscall(SYS_gettid), device };
	n = ep_log_format(line, sizeof(line) - 1, level, &origin, text);
	if (n > (int)sizeof(line) - 2) {
		n = (int)sizeof(line) - 2;
	}
	line[n++] = '\n';
	/* One write, so that lines of several ranks in one file do not mix. */
	for (int done = 0; done < n;) {
		ssize_t w = write(logger.fd, line + done, (size_t)(n - done));

		if (w <= 0 && errno != EINTR) {
			break;
		}
		done += w > 0 ? (int)w : 0;
	}
}

static ep_nccl_logger_fn *nccl_logger;

static bool nccl_logger_sink(enum ep_log_level level, unsigned int subsys, const char *text)
{
	return __atomic_load_n(&nccl_logger, __ATOMIC_ACQUIRE)((int)level, subsys, text);
}

void ep_nccl_logger_use(void)
{
	void *plugin, *address;
	ep_nccl_logger_fn *found;

	if (__atomic_load_n(&nccl_logger, __ATOMIC_RELAXED)) {
		return;
	}
	plugin = dlopen(EP_NCCL_LOGGER_PLUGIN, RTLD_LAZY | RTLD_NOLOAD);
	address = plugin ? dlsym(plugin, EP_NCCL_LOGGER_NAME) : NULL;
	if (address) {
		/* ISO C does not convert object pointers to function pointers */
		memcpy(&found, &address, sizeof(found));
		__atomic_store_n(&nccl_logger, found, __ATOMIC_RELEASE);
		ep_log_to(nccl_logger_sink);
	}
	if (plugin) {
		dlclose(plugin); /* NCCL, who has loaded it, keeps it; and it is never unmapped */
	}
}
