/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines as NCCL writes them, and who decides whether they are written. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "core/cuda.h"
#include "core/log.h"
#include "support/check.h"

static const char *last_text(void)
{
	static struct ep_error error;

	ep_error_get(NULL, &error);
	return error.text;
}

static struct ep_log_config configure(const char *debug, const char *subsys, const char *file)
{
	struct ep_log_config c;

	ep_log_configure(&c, debug, subsys, file, "node7", 4711);
	return c;
}

static void test_levels(void)
{
	CHECK(configure(NULL, NULL, NULL).level == EP_LOG_NONE);
	CHECK(configure("", NULL, NULL).level == EP_LOG_NONE);
	CHECK(configure("loud", NULL, NULL).level == EP_LOG_NONE);
	CHECK(configure("version", NULL, NULL).level == EP_LOG_VERSION);
	CHECK(configure("WARN", NULL, NULL).level == EP_LOG_WARN);
	CHECK(configure("info", NULL, NULL).level == EP_LOG_INFO);
	CHECK(configure("Trace", NULL, NULL).level == EP_LOG_TRACE);
}

static void test_subsystems(void)
{
	unsigned int initial = EP_LOG_INIT | EP_LOG_BOOTSTRAP | EP_LOG_ENV;

	CHECK(configure("INFO", NULL, NULL).subsys == initial);
	CHECK(configure("INFO", "COLL,alloc", NULL).subsys == (EP_LOG_COLL | EP_LOG_ALLOC));
	CHECK(configure("INFO", "^COLL,ALLOC", NULL).subsys ==
	      ~(unsigned int)(EP_LOG_COLL | EP_LOG_ALLOC));
	CHECK(configure("INFO", "ALL", NULL).subsys == ~0u);
	CHECK(configure("INFO", "EP", NULL).subsys == ~0u);
	CHECK(configure("INFO", "FUTURE,NET", NULL).subsys == EP_LOG_NET);
	CHECK(configure("INFO", "", NULL).subsys == 0);
	CHECK(configure("INFO", ",,P2P,", NULL).subsys == EP_LOG_P2P);
}

static const char *file_of(const char *debug, const char *subsys, const char *file)
{
	static struct ep_log_config c;

	c = configure(debug, subsys, file);
	return c.file;
}

static void test_file_names(void)
{
	char longest[8000];

	CHECK_TEXT(file_of("WARN", NULL, "/tmp/a.%h.%p.log"), "/tmp/a.node7.4711.log");
	CHECK_TEXT(file_of("WARN", NULL, "100%%%x"), "100%%x");
	CHECK_TEXT(file_of("WARN", NULL, NULL), "");
	CHECK_TEXT(file_of("VERSION", NULL, "/tmp/a"), "");
	memset(longest, 'a', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	CHECK_TEXT(file_of("WARN", NULL, longest), "");
}

static void test_format(void)
{
	struct ep_log_origin origin = { "node7", 12, 34, 5 };
	char line[100];

	CHECK(ep_log_format(line, sizeof(line), EP_LOG_WARN, &origin, "it broke") == 37);
	CHECK_TEXT(line, "node7:12:34 [5] NCCL WARN EP it broke");
	origin.device = -1;
	ep_log_format(line, sizeof(line), EP_LOG_INFO, &origin, "fine");
	CHECK_TEXT(line, "node7:12:34 [-1] NCCL INFO EP fine");
}

/* Nothing that a terminal could take for a command is left, and everything else stays. */
static void test_flatten(void)
{
	char text[256];

	for (int i = 0; i < 255; i++) {
		text[i] = (char)(i + 1);
	}
	text[255] = '\0';
	ep_log_flatten(text);
	for (int i = 0; i < 255; i++) {
		int was = i + 1, want = was >= ' ' && was < 0x7f ? was : '?';

		CHECK(text[i] == want, "byte 0x%02x is 0x%02x", was, (unsigned char)text[i]);
	}
	strcpy(text, "node\xc2\x9b"
		     "31m");
	ep_fail(ncclRemoteError,
		"%s says \x9b"
		"2J",
		text);
	CHECK_TEXT(last_text(), "node??31m says ?2J");
}

/* The file that NCCL has open is shared at its offset: neither side overwrites the other. */
static void test_shared_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	char text[4096];
	ssize_t n;

	CHECK(fd >= 0 && write(fd, "NCCL's first line\n", 18) == 18);
	CHECK(ep_fail(ncclInvalidArgument, "value %d", 42) == ncclInvalidArgument);
	EP_INFO(EP_LOG_COLL, "not asked for");
	EP_INFO(EP_LOG_ENV, "asked for");
	ep_log_device = NULL; /* as without core/cuda.c */
	CHECK(ep_fail_cuda(cudaErrorNotReady, "a call") == ncclUnhandledCudaError);
	CHECK(write(fd, "NCCL's last line\n", 17) == 17);
	n = pread(fd, text, sizeof(text) - 1, 0);
	text[n > 0 ? n : 0] = '\0';
	CHECK(strncmp(text, "NCCL's first line\n", 18) == 0);
	CHECK_HAS(text, " [0] NCCL WARN EP value 42\n");
	CHECK_HAS(text, " [0] NCCL INFO EP asked for\n");
	CHECK_HAS(text, " [-1] NCCL WARN EP a call failed: ");
	CHECK_HAS(text, " (cudaErrorNotReady)\nNCCL's last line\n");
	CHECK(!strstr(text, "not asked for"));
	close(fd);
	unlink(path);
}

/* Of the descriptors of this process the one of that file; -1: none. */
static int open_as(const char *path)
{
	struct stat want, have;

	NEED(stat(path, &want) == 0);
	for (int fd = 3; fd < 64; fd++) {
		if (fstat(fd, &have) == 0 && have.st_ino == want.st_ino &&
		    have.st_dev == want.st_dev) {
			return fd;
		}
	}
	return -1;
}

/*
 * A child writes a line to a FIFO, which is read or not. Returns what came there, or to its
 * standard output.
 */
static const char *line_of_child(const char *path, bool is_read)
{
	static char text[4096];
	int out[2], in = -1, status;
	ssize_t n;
	pid_t child;

	NEED(pipe2(out, O_CLOEXEC) == 0);
	if (is_read) {
		in = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		NEED(in >= 0);
	}
	child = fork();
	if (child == 0) {
		if (in >= 0) {
			close(in);
		}
		dup2(out[1], STDOUT_FILENO);
		alarm(20); /* ends a child that waits */
		EP_WARN("for whoever reads");
		_exit(is_read &&
		      (open_as(path) < 0 || (fcntl(open_as(path), F_GETFL) & O_NONBLOCK)));
	}
	NEED(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(status == 0, "status 0x%x", status);
	close(out[1]);
	n = read(is_read ? in : out[0], text, sizeof(text) - 1);
	text[n > 0 ? n : 0] = '\0';
	close(out[0]);
	if (in >= 0) {
		close(in);
	}
	return text;
}

static void test_fifo(const char *path)
{
	NEED(unlink(path) == 0 && mkfifo(path, 0600) == 0);
	CHECK_HAS(line_of_child(path, false), " NCCL WARN EP for whoever reads\n");
	CHECK_HAS(line_of_child(path, true), " NCCL WARN EP for whoever reads\n");
	NEED(unlink(path) == 0);
}

int main(void)
{
	char path[] = "/tmp/ep_log_XXXXXX";

	close(mkstemp(path));
	setenv("NCCL_DEBUG", "INFO", 1);
	setenv("NCCL_DEBUG_SUBSYS", "ENV", 1);
	setenv("NCCL_DEBUG_FILE", path, 1);
	test_fifo(path); /* this process has not logged yet */
	test_levels();
	test_subsystems();
	test_file_names();
	test_format();
	test_shared_file(path);
	test_flatten();
	return check_end();
}
