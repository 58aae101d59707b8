/* SPDX-License-Identifier: Apache-2.0 */
/* Under ThreadSanitizer: races inside a block and between blocks are found, others not invented. */
#include "child.h"
#include "kernels.h"

static int child(uint32_t what)
{
	struct test_illegal_args args = { .what = what };

	NEED(cudaMalloc((void **)&args.word, 4096));
	NEED(cudaMemset(args.word, 0, 4096));
	NEED(test_launch(test_illegal, 2, 64, &args, 0, NULL));
	NEED(cudaDeviceSynchronize());
	return 0;
}

int main(int argc, char **argv)
{
	static const char *const env[] = { "TSAN_OPTIONS=exitcode=66", NULL };
	static const uint32_t racy[] = { ILLEGAL_RACE_SHARED, ILLEGAL_RACE_GLOBAL,
					 ILLEGAL_RACE_VOTE, ILLEGAL_RACE_SHUFFLE };
	static const uint32_t clean[] = { ILLEGAL_NONE, LEGAL_WARP_SYNC };
	static char text[CHILD_TEXT];
	char number[16];
	char *args[] = { argv[0], number, NULL };
	int status;

#ifndef __SANITIZE_THREAD__
	printf("skipped: needs -Db_sanitize=thread\n");
	return 77;
#endif
	if (argc > 1) {
		return child((uint32_t)atoi(argv[1]));
	}
	for (int i = 0; i < 4; i++) {
		snprintf(number, sizeof(number), "%u", racy[i]);
		status = child_run(args, env, text);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 66);
		CHECK_TEXT(text, "data race");
	}
	for (int i = 0; i < 2; i++) {
		snprintf(number, sizeof(number), "%u", clean[i]);
		status = child_run(args, env, text);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	return test_result();
}
