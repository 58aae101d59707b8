/* SPDX-License-Identifier: Apache-2.0 */
/* Error records: per thread, per slot, one line. And who a rank is, for those that name it. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "core/bootstrap.h"
#include "core/error.h"
#include "core/ident.h"
#include "support/check_nccl.h"

static void *other_thread(void *arg)
{
	struct ep_error e;

	ep_error_get(NULL, &e);
	CHECK(e.code == ncclSuccess && e.text[0] == '\0');
	(void)ep_fail(ncclSystemError, "theirs");
	return arg;
}

static void test_slots(void)
{
	struct ep_error_slot a, b;
	struct ep_error e;
	pthread_t thread;

	ep_error_slot_init(&a);
	ep_error_slot_init(&b);
	CHECK(ep_error_scope(&a) == NULL);
	CHECK(ep_fail(ncclInvalidUsage, "first %s", "one") == ncclInvalidUsage);
	CHECK(ep_error_scope(&b) == &a);
	CHECK(ep_fail(ncclRemoteError, "second") == ncclRemoteError);
	CHECK(ep_error_scope(NULL) == &b);
	CHECK(ep_fail(ncclInternalError, "third") == ncclInternalError);
	ep_error_get(&a, &e);
	CHECK(e.code == ncclInvalidUsage);
	CHECK_TEXT(e.text, "first one");
	ep_error_get(&b, &e);
	CHECK(e.code == ncclRemoteError);
	CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	ep_error_get(NULL, &e);
	CHECK(e.code == ncclInternalError);
	CHECK_TEXT(e.text, "third");
	ep_error_scope(&a);
	ep_error_slot_destroy(&a); /* leaves no dangling scope behind */
	CHECK(ep_error_scope(NULL) == NULL);
	ep_error_slot_destroy(&b);
}

static void test_long_text(void)
{
	char longest[3 * EP_ERROR_TEXT];
	struct ep_error e;

	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	CHECK(ep_fail(ncclInvalidArgument, "%s", longest) == ncclInvalidArgument);
	ep_error_get(NULL, &e);
	CHECK(strlen(e.text) == EP_ERROR_TEXT - 1);
}

static void test_verdicts(void)
{
	struct ep_boot boot = { .rank = 1, .nranks = 3 };
	struct ep_verdict v[3];
	struct ep_error e;

	memset(v, 0, sizeof(v));
	OK(ep_verdict_check(&boot, v, sizeof(v[0]), "meeting"));
	(void)ep_fail(ncclInvalidArgument, "too many %s", "things");
	v[2] = ep_verdict_make(ncclInvalidArgument);
	CHECK(ep_verdict_check(&boot, v, sizeof(v[0]), "meeting") == ncclRemoteError);
	ep_error_get(NULL, &e);
	CHECK_TEXT(e.text, "meeting failed on rank 2: too many things");
	boot.rank = 2; /* the rank itself returns what it found */
	CHECK(ep_verdict_check(&boot, v, sizeof(v[0]), "meeting") == ncclInvalidArgument);
}

static void test_ident(void)
{
	struct ep_ident mine, child, elsewhere;
	int status, up[2];
	char done;
	pid_t pid;

	unsetenv("NCCL_HOSTID");
	OK(ep_ident_make(&mine, 0));
	CHECK(mine.pid == getpid() && mine.bus_id[0] && mine.hostname[0]);
	CHECK(ep_ident_same_process(&mine, &mine) && !ep_ident_gone(&mine, &mine));
	setenv("NCCL_HOSTID", "another", 1);
	OK(ep_ident_make(&elsewhere, 0));
	CHECK(!ep_ident_same_host(&mine, &elsewhere) && !ep_ident_gone(&mine, &elsewhere));
	unsetenv("NCCL_HOSTID");

	CHECK(pipe(up) == 0);
	pid = fork();
	if (pid == 0) {
		close(up[1]);
		_exit(read(up[0], &done, 1) != 0);
	}
	close(up[0]);
	child = mine;
	child.pid = pid;
	child.start_time--; /* the child may have started in the same clock tick as we */
	CHECK(ep_ident_gone(&mine, &child)); /* alive, but not since the same time */
	child.start_time = 0;
	for (uint64_t t = mine.start_time;
	     t < mine.start_time + 6000 && ep_ident_gone(&mine, &child); t++) {
		child.start_time = t;
	}
	CHECK(!ep_ident_gone(&mine, &child));
	close(up[1]);
	usleep(100000);
	CHECK(ep_ident_gone(&mine, &child)); /* a zombie */
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(ep_ident_gone(&mine, &child)); /* nothing left */
	child.pid_ns++;
	CHECK(!ep_ident_gone(&mine, &child)); /* cannot be known */
}

int main(void)
{
	test_slots();
	test_long_text();
	test_verdicts();
	test_ident();
	return check_end();
}
