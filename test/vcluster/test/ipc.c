/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other processes: by CUDA IPC inside a node, not at all across nodes; kernels on it. */
#include "ranks.h"
#include "kernels.h"

#define MAIL 8192
#define ROUNDS 12

/* Every rank exchanges packets with its right neighbour of the node, and so with its left one. */
static void test_neighbours(void)
{
	int per_node = env_int("LOCAL_WORLD_SIZE");
	int right = node * per_node + (local_rank + 1) % per_node;
	int left = node * per_node + (local_rank + per_node - 1) % per_node;
	cudaIpcMemHandle_t mine, all[RANKS_MAX];
	char *mail, *peer[RANKS_MAX] = { 0 };
	struct test_packet_args args = { .rounds = ROUNDS, .timeout_ns = 30000000000ull };
	cudaStream_t stream[2];
	uint32_t *word, host[2];

	NEED(cudaMalloc((void **)&mail, 2 * MAIL));
	NEED(cudaMalloc((void **)&word, 64));
	NEED(cudaMemset(mail, 0, 2 * MAIL));
	NEED(cudaMemset(word, 0, 64));
	NEED(cudaDeviceSynchronize());
	OK(cudaIpcGetMemHandle(&mine, mail));
	ranks_gather(&mine, all, sizeof(mine));
	for (int i = 0; i < nranks; i++) {
		if (i == rank) {
			CHECK_CUDA(cudaIpcOpenMemHandle((void **)&peer[i], all[i],
							cudaIpcMemLazyEnablePeerAccess),
				   cudaErrorDeviceUninitialized);
			peer[i] = mail;
		} else if (i / per_node != node) {
			CHECK_CUDA(cudaIpcOpenMemHandle((void **)&peer[i], all[i],
							cudaIpcMemLazyEnablePeerAccess),
				   cudaErrorInvalidResourceHandle);
		} else {
			NEED(cudaIpcOpenMemHandle((void **)&peer[i], all[i],
						  cudaIpcMemLazyEnablePeerAccess));
		}
	}
	/* Box 0 of a rank is filled by its left neighbour, box 1 by its right one. */
	for (int i = 0; i < 2; i++) {
		NEED(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking));
		args.to = i ? peer[left] + MAIL : peer[right];
		args.from = i ? mail : mail + MAIL;
		args.epoch = 100;
		args.sum = word;
		args.late = word + 1;
		NEED(test_launch(test_packet, 4, 64, &args, 0, stream[i]));
	}
	for (int i = 0; i < 2; i++) {
		OK(cudaStreamSynchronize(stream[i]));
		OK(cudaStreamDestroy(stream[i]));
	}
	NEED(cudaMemcpy(host, word, sizeof(host), cudaMemcpyDeviceToHost));
	CHECK_INT(host[1], 0);
	CHECK_INT(host[0], 2 * 256 * 3 * (100 * ROUNDS + ROUNDS * (ROUNDS - 1) / 2));

	uint32_t last;

	OK(cudaMemcpy(&last, peer[left] + 4, 4, cudaMemcpyDefault)); /* a peer's box can be read */
	CHECK_CUDA(cudaMemcpy(&last, peer[left] + 2 * MAIL - 2, 4, cudaMemcpyDefault),
		   cudaErrorInvalidValue);
	ranks_meet(); /* nobody frees before all are done */
	for (int i = 0; i < nranks; i++) {
		if (peer[i] && i != rank) {
			OK(cudaIpcCloseMemHandle(peer[i]));
			CHECK_CUDA(cudaIpcCloseMemHandle(peer[i]), cudaErrorInvalidValue);
		}
	}
	OK(cudaFree(mail));
	OK(cudaFree(word));
}

/* A handle of memory that its owner has freed opens nothing. */
static void test_freed(void)
{
	cudaIpcMemHandle_t mine, all[RANKS_MAX];
	void *p, *q;

	NEED(cudaMalloc(&p, 100000));
	NEED(cudaIpcGetMemHandle(&mine, p));
	ranks_gather(&mine, all, sizeof(mine));
	OK(cudaFree(p));
	ranks_meet();
	for (int i = 0; i < nranks; i++) {
		if (i != rank) {
			CHECK(cudaIpcOpenMemHandle(&q, all[i], cudaIpcMemLazyEnablePeerAccess) !=
			      cudaSuccess);
		}
	}
	memset(&mine, 0x77, sizeof(mine));
	CHECK_CUDA(cudaIpcOpenMemHandle(&q, mine, cudaIpcMemLazyEnablePeerAccess),
		   cudaErrorInvalidValue);
}

int main(void)
{
	ranks_init();
	NEED(cudaSetDevice(local_rank));
	test_neighbours();
	test_freed();
	return test_result();
}
