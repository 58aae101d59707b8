/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that break the rules: each must end its process with the right diagnosis. */
#include "child.h"
#include "kernels.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#ifdef __SANITIZE_THREAD__
#define THREADS 1
#else
#define THREADS 0
#endif

static const struct illegal {
	uint32_t what;
	int code;
	const char *text[3];
	bool any_build;
} cases[] = {
	{ ILLEGAL_NONE, 0, { "done" }, true },
	{ ILLEGAL_EXIT_IN_COLLECTIVE,
	  87,
	  { "kernel test_illegal, device 0, block",
	    "lane 9: ends while "
	    "lanes 0x",
	    "in warp_sync with mask 0xffffffff" },
	  true },
	{ ILLEGAL_MASKS,
	  87,
	  { "lane 16: calls ballot with mask 0xffffffff while lanes 0x0000ffff of it "
	    "wait for it in ballot with mask 0x0001ffff" },
	  true },
	{ ILLEGAL_OPS, 87, { "calls ", "wait in a" }, true },
	{ ILLEGAL_NOT_NAMED,
	  87,
	  { "lane 16: calls ballot with mask 0x0000ffff, which does not name it" },
	  true },
	{ ILLEGAL_BARRIER_COUNT, 87, { "barrier 1: called for ", " wait in it for " }, true },
	{ ILLEGAL_BARRIER_EXIT, 87, { "barrier 0 of the whole block" }, true },
	{ ILLEGAL_BARRIER_WARP, 87, { "only lanes 0x", "a barrier takes whole warps" }, true },
	{ ILLEGAL_DEADLOCK,
	  87,
	  { "deadlock", "wait in barrier 2, 64 of 96 threads are there" },
	  true },
	{ ILLEGAL_STACK, 87, { "stack overflow beyond 32 KiB" }, !SANITIZED },
	{ ILLEGAL_ADDRESS,
	  0,
	  { "kernel test_illegal, block 0, warp 2, lane 6: illegal access",
	    "sticky: cudaErrorIllegalAddress" },
	  !SANITIZED },
	{ ILLEGAL_FENCE_NONE, 87, { "ep_st_fenced_sys_u32() without a fence" }, true },
	{ ILLEGAL_FENCE_OLD, 87, { "ep_st_fenced_sys_u32() without a fence" }, true },
	{ ILLEGAL_FENCE_BARRIER, 87, { "ep_st_fenced_sys_u32() without a fence" }, true },
	{ ILLEGAL_FENCE_SCOPE, 87, { "to memory that is not this device's" }, !THREADS },
	{ ILLEGAL_FENCE_FLAG, 87, { "a device's register without ep_release_fence_sys()" }, true },
	{ ILLEGAL_FENCE_REGISTER,
	  87,
	  { "a device's register without ep_release_fence_sys()" },
	  true },
	{ ILLEGAL_READ_ONLY,
	  87,
	  { "kernel test_illegal, device 0: address 0x",
	    "was written while the kernel ran, which has read it with ep_ld16_nc()" },
	  true },
	{ ILLEGAL_READ_ONLY_8, 87, { "has read it with ep_ld8_nc()" }, true },
	{ ILLEGAL_HANG_SPIN,
	  86,
	  { "watchdog: kernel test_illegal on device 0 made no progress for 2.0 s",
	    "rank 3 device 0 kernel test_illegal block 0/2 warp 2 lanes 0x",
	    "warp 1 lanes 0xffffffff wait in barrier 0, " },
	  true },
	{ ILLEGAL_HANG_LOOP, 86, { "warp 1 lanes 0x00000100 run" }, true },
};

/* The lanes of a warp, "block B/N warp W", that the watchdog says `what` of. */
static uint32_t lanes_that(const char *text, const char *warp, const char *what)
{
	uint32_t lanes = 0;

	while ((text = strstr(text, warp)) != NULL) {
		unsigned int some;
		char rest[128];

		text += strlen(warp);
		if (sscanf(text, " lanes 0x%x %127[^\n]", &some, rest) == 2 &&
		    !strcmp(rest, what)) {
			lanes |= some;
		}
	}
	return lanes;
}

/* Lanes of a warp poll one after the other: the one whose turn it is runs, or is about to. */
static void check_polling(const char *text)
{
	static const char warp[] = "block 0/2 warp 2";
	uint32_t poll = lanes_that(text, warp, "polls for dispatch-count of peer 5");
	uint32_t run = lanes_that(text, warp, "run") | lanes_that(text, warp, "could run");

	if (!poll || (poll ^ run) != 0xffffffff) {
		fprintf(stderr, "lanes 0x%08x poll, 0x%08x run:\n%s\n", poll, run, text);
		test_failures++;
	}
}

static int child(uint32_t what)
{
	struct test_illegal_args args = { .what = what };

	NEED(cudaMalloc((void **)&args.word, 4096));
	NEED(cudaMemset(args.word, 0, 4096));
	NEED(test_launch(test_illegal, 2, 128, &args, 0, NULL));
	if (what == ILLEGAL_ADDRESS) {
		void *p;

		CHECK_CUDA(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
		CHECK_CUDA(cudaMalloc(&p, 16), cudaErrorIllegalAddress);
		CHECK_CUDA(cudaStreamSynchronize(NULL), cudaErrorIllegalAddress);
		CHECK_CUDA(cudaGetLastError(), cudaErrorIllegalAddress);
		CHECK_CUDA(test_launch(test_illegal, 2, 128, &args, 0, NULL),
			   cudaErrorIllegalAddress);
		/* another device is not concerned */
		OK(cudaSetDevice(1));
		OK(cudaDeviceSynchronize());
		printf("sticky: %s\n", cudaGetErrorName(cudaErrorIllegalAddress));
	} else {
		OK(cudaDeviceSynchronize());
		printf("done\n");
	}
	return test_result();
}

int main(int argc, char **argv)
{
	static char text[CHILD_TEXT];

	if (argc > 1) {
		return child((uint32_t)atoi(argv[1]));
	}
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		/* the watchdog is early only where it is to bark: the machine may be busy */
		const char *const env[] = { "RANK=3",
					    cases[i].code == 86 ? "VC_WATCHDOG_S=2" : NULL, NULL };
		char number[16];
		char *args[] = { argv[0], number, NULL };
		int status;

		if (!cases[i].any_build) {
			continue;
		}
		snprintf(number, sizeof(number), "%u", cases[i].what);
		status = child_run(args, env, text);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != cases[i].code) {
			fprintf(stderr, "case %u: wait status %#x, should be exit %d:\n%s\n",
				cases[i].what, (unsigned int)status, cases[i].code, text);
			test_failures++;
		}
		for (int k = 0; k < 3 && cases[i].text[k]; k++) {
			CHECK_TEXT(text, cases[i].text[k]);
		}
		if (cases[i].what == ILLEGAL_HANG_SPIN) {
			check_polling(text);
		}
	}
	return test_result();
}
