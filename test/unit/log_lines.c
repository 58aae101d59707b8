// SPDX-License-Identifier: Apache-2.0
/* Log lines as NCCL writes them, and who decides whether they are written. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include "core/cuda.h"
#include "core/log.h"
#include "support/check.h"

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
	char line[100];

	CHECK(ep_log_format(line, sizeof(line), EP_LOG_WARN, "node7", 12, 34, 5, "it broke") == 37);
	CHECK_TEXT(line, "node7:12:34 [5] NCCL WARN EP it broke");
	ep_log_format(line, sizeof(line), EP_LOG_INFO, "node7", 12, 34, -1, "fine");
	CHECK_TEXT(line, "node7:12:34 [-1] NCCL INFO EP fine");
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

int main(void)
{
	char path[] = "/tmp/ep_log_XXXXXX";

	close(mkstemp(path));
	setenv("NCCL_DEBUG", "INFO", 1);
	setenv("NCCL_DEBUG_SUBSYS", "ENV", 1);
	setenv("NCCL_DEBUG_FILE", path, 1);
	test_levels();
	test_subsystems();
	test_file_names();
	test_format();
	test_shared_file(path);
	return check_end();
}
