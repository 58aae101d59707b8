/* SPDX-License-Identifier: Apache-2.0 */
/* vcrun: environment, exit codes, timeouts; and the faults of VC_FAULT. Argument: path of vcrun. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <time.h>
#include "child.h"
#include "kernels.h"

static char *vcrun, *self;
static char text[CHILD_TEXT];

/* What a compiler that fortifies calls makes of gethostname(). */
int __gethostname_chk(char *name, size_t size, size_t room);

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* What a rank does, by name. */
static int rank_main(const char *what)
{
	int rank = atoi(getenv("RANK"));
	struct test_add_args args = { .add = 1 };
	double start = now();
	uint32_t host;

	if (!strcmp(what, "env")) {
		char name[64], other[64], shortest[4];
		struct addrinfo *address;
		int count;

		NEED(cudaGetDeviceCount(&count));
		CHECK(gethostname(name, sizeof(name)) == 0);
		CHECK_INT(getaddrinfo(name, "80", NULL, &address), 0);
		CHECK_INT(ntohl(((struct sockaddr_in *)address->ai_addr)->sin_addr.s_addr),
			  INADDR_LOOPBACK);
		freeaddrinfo(address);
		CHECK(gethostname(shortest, sizeof(shortest)) == -1 && errno == ENAMETOOLONG);
		CHECK(__gethostname_chk(other, sizeof(other), sizeof(other)) == 0);
		CHECK(!strcmp(other, name));
		CHECK(!getenv("NCCL_HOSTID"));
		printf("rank %d of %s local %s of %s node %s host %s devices %d extra %s\n", rank,
		       getenv("WORLD_SIZE"), getenv("LOCAL_RANK"), getenv("LOCAL_WORLD_SIZE"),
		       getenv("VC_NODE"), name, count, getenv("EXTRA"));
		return test_failures || access(getenv("VC_DIR"), W_OK) || !getenv("MASTER_PORT");
	}
	if (!strcmp(what, "code")) {
		if (rank == 2) {
			return 9;
		}
		pause();
		return 0;
	}
	if (!strcmp(what, "stay")) {
		return rank == 1 ? pause() : 0;
	}
	NEED(cudaMalloc((void **)&args.word, 64));
	NEED(cudaMemset(args.word, 0, 64));
	for (int i = 0; i < 5; i++) {
		NEED(test_launch(test_add, 1, 32, &args, 0, NULL));
		NEED(cudaDeviceSynchronize());
		printf("rank %d launch %d\n", rank, i + 1);
		fflush(stdout);
	}
	NEED(cudaMemcpy(&host, args.word, 4, cudaMemcpyDefault));
	printf("rank %d is %s\n", rank, now() - start >= 1.5 ? "late" : "in time");
	return host == 5 ? 0 : 1;
}

static int job(char *options[], const char *what)
{
	char *argv[16];
	int n = 0, status;

	argv[n++] = vcrun;
	for (; *options; options++) {
		argv[n++] = *options;
	}
	argv[n++] = (char *)"--";
	argv[n++] = self;
	argv[n++] = (char *)"rank";
	argv[n++] = (char *)what;
	argv[n] = NULL;
	status = child_run(argv, NULL, text);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define OPTIONS(...) ((char *[]){ (char *)"--gpus", (char *)"3", __VA_ARGS__, NULL })

static void test_codes(void)
{
	double start = now();

	CHECK_INT(job(OPTIONS("--nodes", "2", "--env", "EXTRA=yes"), "env"), 0);
	CHECK_TEXT(text, "rank 4 of 6 local 1 of 3 node 1 host vc-node-1 devices 3 extra yes");
	CHECK_TEXT(text, "rank 0 of 6 local 0 of 3 node 0 host vc-node-0 devices 3 extra yes");
	CHECK_INT(job(OPTIONS("--nodes", "1"), "code"), 9);
	CHECK_TEXT(text, "rank 2 ended with code 9");
	CHECK_INT(job(OPTIONS("--timeout", "1"), "stay"), 124);
	CHECK_TEXT(text, "still running: ranks 1\n");
	CHECK(now() - start < 20);
	CHECK_INT(job(OPTIONS("--nodes", "zero"), "env"), 2);
	CHECK_TEXT(text, "--nodes: got 'zero', allowed is a number from 1 to 64");
	CHECK_INT(job(OPTIONS("--nodes", "64", "--gpus", "5"), "env"), 2);
	CHECK_TEXT(text, "--nodes times --gpus: got 320, allowed is 256 at most");
	CHECK_INT(job(OPTIONS("--bogus"), "env"), 2);
	CHECK_TEXT(text, "--bogus is not an option");
	CHECK_INT(job(OPTIONS("--help"), "env"), 0);
	CHECK_TEXT(text, "usage: vcrun");
	CHECK(!strstr(text, "rank 0"));
}

static void test_faults(void)
{
	CHECK_INT(job(OPTIONS("--keep-going", "--env", "VC_FAULT=kill:rank=1,launch=3"), "add"),
		  128 + SIGKILL);
	CHECK_TEXT(text, "rank 1 launch 2\n");
	CHECK(!strstr(text, "rank 1 launch 3\n"));
	CHECK_TEXT(text, "rank 2 launch 5\n");
	CHECK_TEXT(text, "rank 1 was killed by signal 9");
	/* a minute is too late: before the second launch after that one */
	CHECK_INT(job(OPTIONS("--keep-going", "--env", "VC_FAULT=kill:rank=1,launch=2,us=60000000"),
		      "add"),
		  128 + SIGKILL);
	CHECK_TEXT(text, "rank 1 launch 3\n");
	CHECK(!strstr(text, "rank 1 launch 4\n"));
	CHECK_INT(job(OPTIONS("--timeout", "3", "--env", "VC_FAULT=stop:rank=0,launch=2"), "add"),
		  124);
	CHECK_TEXT(text, "still running: ranks 0\n");
	CHECK_TEXT(text, "rank 0 launch 1\n");
	CHECK_INT(job(OPTIONS("--env", "VC_FAULT=delay:rank=1,us=300000;delay:rank=2,us=1"), "add"),
		  0);
	CHECK_TEXT(text, "rank 1 is late\n");
	CHECK_TEXT(text, "rank 2 is in time\n");
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "rank")) {
		return rank_main(argv[2]);
	}
	if (argc != 2) {
		fprintf(stderr, "usage: %s path-of-vcrun\n", argv[0]);
		return 1;
	}
	self = argv[0];
	vcrun = argv[1];
	test_codes();
	test_faults();
	return test_result();
}
