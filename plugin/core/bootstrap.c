/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges of host bytes by ncclAllGather, each with a limit of time and a word for each way to
 * fail.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/bootstrap.h"
#include "core/cuda.h"
#include "core/nccl_dyn.h"
#include "core/timed_call.h"

/*
 * Polls at once at first, an exchange takes tens of microseconds; later it need not burn a core:
 * naps of 50 us, and what has taken long may take a sixteenth longer.
 */
static void boot_pause(uint64_t waited_ns)
{
	uint64_t nap_ns = ep_max_u64(50000, ep_min_u64(waited_ns / 16, 5000000));
	struct timespec nap = { 0, (long)nap_ns };

	if (waited_ns > 100000) {
		nanosleep(&nap, NULL);
	}
}

/* Allocates, and replaces what fails, so that the rank can report its failure. */
static ncclResult_t boot_alloc(struct ep_boot *boot, ncclResult_t *mine)
{
	size_t bytes = (size_t)boot->nranks * EP_BOOT_BYTES;
	ncclResult_t trouble = ncclSuccess;
	struct ep_reason why;
	cudaError_t err;

	err = cudaStreamCreateWithFlags(&boot->stream, cudaStreamNonBlocking);
	if (err != cudaSuccess) {
		trouble = ep_fail_cuda(err, "creating the bootstrap stream");
		boot->stream = NULL;
	}
	if (!ep_pinned_alloc(&boot->shared, bytes, &why)) {
		trouble = ep_fail(ncclUnhandledCudaError, "the bootstrap buffer: %s", why.text);
		EP_CUDA(cudaMalloc((void **)&boot->spare, bytes),
			"allocating the bootstrap buffer in device memory");
	}
	boot->all = boot->shared.host;
	if (*mine == ncclSuccess) {
		*mine = trouble;
	}
	return ncclSuccess;
}

ncclResult_t ep_boot_open_known(struct ep_boot *boot, ncclComm_t comm, int rank, int nranks,
				uint64_t timeout_ns, ncclResult_t *mine)
{
	ncclResult_t result;

	*boot = (struct ep_boot){ .comm = comm,
				  .rank = rank,
				  .nranks = nranks,
				  .timeout_ns = timeout_ns,
				  .context = ep_context_now() };
	result = boot_alloc(boot, mine);
	if (result != ncclSuccess) {
		ep_boot_close(boot);
	}
	return result;
}

ncclResult_t ep_boot_open(struct ep_boot *boot, ncclComm_t comm, uint64_t timeout_ns,
			  ncclResult_t *mine)
{
	int rank = 0, nranks = 0;
	const struct ep_nccl_dyn *nccl = ep_nccl_dyn();
	ncclResult_t result = nccl->comm_count(comm, &nranks);

	if (result == ncclSuccess) {
		result = nccl->comm_user_rank(comm, &rank);
	}
	if (result != ncclSuccess) {
		return ep_fail(result, "the communicator does not report its rank and size: %s",
			       ep_nccl_text(result));
	}
	return ep_boot_open_known(boot, comm, rank, nranks, timeout_ns, mine);
}

void ep_boot_close(struct ep_boot *boot)
{
	bool ended = ep_context_ended(&boot->context);

	boot->all = NULL;
	ep_pinned_free(&boot->shared, ended);
	if (!ended && boot->spare && cudaFree(boot->spare) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	if (!ended && boot->stream && cudaStreamDestroy(boot->stream) != cudaSuccess) {
		(void)cudaGetLastError();
	}
}

/* The arguments of NCCL's collective, and its result. */
struct boot_gather {
	struct ep_device_job on;
	ncclComm_t comm;
	unsigned char *buffer;
	size_t off, bytes; /* of this rank's */
	cudaStream_t stream;
	ncclResult_t result;
};

void ep_boot_rest(struct ep_boot *boot, int device)
{
	struct boot_gather ended;

	while (boot->call &&
	       ep_timed_call_go(boot->call, &ended, sizeof(ended), EP_TIMED_CALL_LONGEST_NS)) {
	}
	ep_timed_call_end(boot->call);
	boot->call = NULL;
	if (!ep_context_ended(&boot->context)) {
		(void)ep_device_rest(device);
	}
	boot->stuck = false;
	boot->busy = false;
	boot->failed = boot->failed ? boot->failed : ncclRemoteError;
	boot->idents = NULL;
}

#define EP_BOOT_CAUSE 200u /* bytes of NCCL's words for an error */

/* An error that NCCL has found by itself, such as a lost connection; looked up rarely. */
static ncclResult_t boot_nccl_error(struct ep_boot *boot)
{
	const struct ep_nccl_dyn *nccl = ep_nccl_dyn();
	ncclResult_t error = ncclSuccess;

	if (!nccl->comm_get_async_error ||
	    nccl->comm_get_async_error(boot->comm, &error) != ncclSuccess) {
		return ncclSuccess;
	}
	return error;
}

/* Records the error that NCCL has found, with NCCL's own words for the cause, where it has some. */
static ncclResult_t boot_nccl_fail(const struct ep_boot *boot, ncclResult_t error, const char *what)
{
	const struct ep_nccl_dyn *nccl = ep_nccl_dyn();
	const char *last = nccl->get_last_error ? nccl->get_last_error(boot->comm) : NULL;
	int length = last ? (int)strcspn(last, "\n") : 0;
	char gone[EP_BOOT_GONE_TEXT];

	length = (int)ep_min_u64((uint64_t)length, EP_BOOT_CAUSE);
	return ep_fail(error,
		       "%s: NCCL reports %s%s%.*s%s on rank %d%s; destroy the communicator and "
		       "start again",
		       what, ep_nccl_text(error), length ? " (" : "", length, last ? last : "",
		       length ? ")" : "", boot->rank, ep_boot_gone(boot, gone));
}

const char *ep_boot_gone(const struct ep_boot *boot, char text[EP_BOOT_GONE_TEXT])
{
	text[0] = '\0';
	for (int r = 0; boot->idents && r < boot->nranks && !text[0]; r++) {
		if (r != boot->rank && ep_ident_gone(&boot->idents[boot->rank], &boot->idents[r])) {
			snprintf(text, EP_BOOT_GONE_TEXT, " (rank %d's process, pid %d, has ended)",
				 r, boot->idents[r].pid);
		}
	}
	return text;
}

/* A rank that has refused a call may make the right one: it gets this long. */
#define EP_BOOT_REFUSED_NS 2000000000ull

/* Fails if a rank has refused to come for a while. *since: from when on, 0: none has. */
static ncclResult_t boot_check_refused(struct ep_boot *boot, uint64_t now, uint64_t *since,
				       const char *what)
{
	int r = boot->refused ? boot->refused(boot->refused_arg) : -1;

	*since = r < 0 ? 0 : *since ? *since : now;
	if (r < 0 || now - *since < EP_BOOT_REFUSED_NS) {
		return ncclSuccess;
	}
	boot->stuck = true;
	return ep_fail(
		ncclRemoteError,
		"%s: rank %d (pid %d on %s) has refused its call, whose topk_idx or num_topk "
		"is wrong, and does not come: see its own error. Abort the communicator: its "
		"collective still waits on the device",
		what, r, boot->idents[r].pid, boot->idents[r].hostname);
}

/* Not all ranks have come: the collective still waits. */
static ncclResult_t boot_late(struct ep_boot *boot, const char *then, const char *what)
{
	char gone[EP_BOOT_GONE_TEXT];

	boot->stuck = true;
	boot->unsent = false;
	return ep_fail(ncclRemoteError,
		       "%s: not all %d ranks arrived within %llu ms (rank %d waited)%s; all ranks "
		       "must make this call. %s. NCCL_EP_BOOTSTRAP_TIMEOUT_MS sets the limit",
		       what, boot->nranks, (unsigned long long)(boot->timeout_ns / 1000000),
		       boot->rank, ep_boot_gone(boot, gone), then);
}

/* Waits for the device in an exchange that began at `start`. */
static ncclResult_t boot_wait(struct ep_boot *boot, uint64_t start, const char *what)
{
	uint64_t begun = ep_now_ns(), checked = begun, refused = 0;

	for (;;) {
		cudaError_t state = cudaStreamQuery(boot->stream);
		uint64_t now = ep_now_ns();
		ncclResult_t error = ncclSuccess;

		if (state != cudaSuccess && state != cudaErrorNotReady) {
			boot->stuck = true; /* for all that is known */
			return ep_fail_cuda(state, what);
		}
		/* A collective that was aborted ends too, without what it should have brought. */
		if (state == cudaSuccess || now - checked > 100000000) {
			checked = now;
			error = boot_nccl_error(boot);
			EP_CHECK(state == cudaSuccess
					 ? ncclSuccess
					 : boot_check_refused(boot, now, &refused, what));
		}
		if (error != ncclSuccess && error != ncclInProgress) {
			boot->stuck = state != cudaSuccess;
			return boot_nccl_fail(boot, error, what);
		}
		if (state == cudaSuccess) {
			return ncclSuccess;
		}
		if (now - start > boot->timeout_ns) {
			return boot_late(boot,
					 "Abort the communicator: its collective still waits on "
					 "the device",
					 what);
		}
		boot_pause(now - begun);
	}
}

static void boot_gather(void *arg)
{
	struct boot_gather *g = arg;

	g->result = ep_nccl_dyn()->all_gather(g->buffer + g->off, g->buffer, g->bytes, ncclUint8,
					      g->comm, g->stream);
}

/*
 * Gives NCCL the collective, in a thread if there is one. The caller may be between ncclGroupStart
 * and ncclGroupEnd, where NCCL only remembers the calls of that thread. And the first collective
 * may connect the ranks, for which NCCL lets its caller wait: for a rank that has died, too, until
 * the communicator is aborted. False: NCCL has not returned.
 */
static bool boot_call(struct ep_boot *boot, struct boot_gather *g, uint64_t start)
{
	uint64_t gone;

	boot->no_thread = ep_device_call_begin(&boot->call, boot_gather, &g->on, sizeof(*g));
	if (boot->no_thread) {
		boot_gather(g);
		return true;
	}
	gone = ep_now_ns() - start;
	if (ep_timed_call_go(boot->call, g, sizeof(*g),
			     boot->timeout_ns - ep_min_u64(gone, boot->timeout_ns))) {
		return false;
	}
	ep_timed_call_end(boot->call);
	boot->call = NULL;
	return true;
}

/*
 * NCCL may still enqueue what it has, from a thread of its own, until the communicator is aborted;
 * and nobody can ask a communicator whether it is. So stream and buffers stay allocated.
 */
static void boot_keep(struct ep_boot *boot)
{
	boot->stream = NULL;
	boot->all = NULL;
	boot->spare = NULL;
	memset(&boot->shared, 0, sizeof(boot->shared));
}

/* A nonblocking communicator may return before the operation is enqueued. */
static ncclResult_t boot_enqueue(struct ep_boot *boot, size_t bytes, uint64_t start,
				 const char *what)
{
	struct boot_gather g = { .comm = boot->comm,
				 .buffer = boot->spare ? boot->spare : boot->shared.dev,
				 .off = (size_t)boot->rank * bytes,
				 .bytes = bytes,
				 .stream = boot->stream };
	uint64_t begun = ep_now_ns();
	ncclResult_t result;

	if (!boot_call(boot, &g, start)) {
		return boot_late(boot, EP_BOOT_IN_CALL, what);
	}
	result = g.result;
	boot->unsent = result != ncclSuccess && result != ncclInProgress;
	while (result == ncclInProgress && ep_nccl_dyn()->comm_get_async_error) {
		uint64_t now = ep_now_ns();

		if (now - start > boot->timeout_ns) {
			boot_keep(boot);
			return boot_late(boot,
					 "Abort the communicator: its collective still waits in a "
					 "thread of NCCL's",
					 what);
		}
		boot_pause(now - begun);
		result = boot_nccl_error(boot);
	}
	if (result != ncclSuccess) {
		return ep_fail(result, "%s: ncclAllGather failed: %s", what, ep_nccl_text(result));
	}
	return ncclSuccess;
}

/* What no rank has written yet. */
static void boot_blank(struct ep_boot *boot, size_t bytes)
{
	const uint32_t blank = EP_BOOT_BLANK;

	for (int r = 0; r < boot->nranks; r++) {
		memcpy(boot->shared.host + (size_t)r * bytes, &blank, sizeof(blank));
	}
}

/*
 * NCCL keeps the exchange until the program calls ncclGroupEnd, and writes to the memory then. It
 * does so with a call of the program's own thread, and with one of any thread where calls on the
 * communicator wait already.
 */
static ncclResult_t boot_kept_fail(const struct ep_boot *boot, const char *what)
{
	char text[EP_THREAD_ERROR_TEXT];

	if (boot->no_thread) {
		return ep_fail(ncclSystemError,
			       "%s: NCCL keeps the exchange until ncclGroupEnd, since rank %d has "
			       "no thread to make it: %s; make this call after ncclGroupEnd",
			       what, boot->rank, ep_thread_error_print(boot->no_thread, text));
	}
	return ep_fail(ncclInvalidUsage,
		       "%s: NCCL has not begun the exchange, since calls on this communicator wait "
		       "for ncclGroupEnd: make them after this call",
		       what);
}

/* Fails if NCCL has brought nothing yet. */
static ncclResult_t boot_check_received(struct ep_boot *boot, size_t bytes, const char *what)
{
	uint32_t first;

	for (int r = 0; r < boot->nranks; r++) {
		memcpy(&first, boot->shared.host + (size_t)r * bytes, sizeof(first));
		if (first == EP_BOOT_BLANK) {
			boot_keep(boot);
			return boot_kept_fail(boot, what);
		}
	}
	return ncclSuccess;
}

static ncclResult_t boot_exchange(struct ep_boot *boot, const void *mine, void *all, size_t bytes,
				  const char *what)
{
	uint64_t start;

	if (bytes > EP_BOOT_BYTES) {
		return ep_fail(ncclInternalError, "%s: %zu bytes per rank, the limit is %d", what,
			       bytes, EP_BOOT_BYTES);
	}
	if (boot->failed != ncclSuccess) {
		return boot->failed; /* whose error stands */
	}
	if (boot->stuck) {
		return ep_fail(ncclRemoteError, "%s: an earlier exchange has not ended", what);
	}
	boot->unsent = true;
	start = ep_now_ns();
	if (boot->all) {
		boot_blank(boot, bytes);
		memcpy(boot->shared.host + (size_t)boot->rank * bytes, mine, bytes);
	} else {
		EP_CUDA(cudaMemcpyAsync(boot->spare + (size_t)boot->rank * bytes, mine, bytes,
					cudaMemcpyDefault, boot->stream),
			what);
	}
	EP_CHECK(boot_enqueue(boot, bytes, start, what));
	EP_CHECK(boot_wait(boot, start, what));
	if (boot->all) {
		EP_CHECK(boot_check_received(boot, bytes, what));
	}
	if (all && !boot->all) {
		return ep_fail(ncclSystemError, "%s: no memory for the answers of other ranks",
			       what);
	}
	if (all && all != boot->all) {
		memcpy(all, boot->all, (size_t)boot->nranks * bytes);
	}
	return ncclSuccess;
}

ncclResult_t ep_boot_allgather(struct ep_boot *boot, const void *mine, void *all, size_t bytes,
			       const char *what)
{
	uint64_t start = ep_now_ns(), took;
	ncclResult_t result;

	ep_board_begin_exchange(boot->board, what);
	result = boot_exchange(boot, mine, all, bytes, what);
	ep_board_end_exchange(boot->board);
	took = ep_now_ns() - start;
	boot->failed = result;
	boot->first_ns = boot->exchanges++ ? boot->first_ns : took;
	boot->exchanged_ns += took;
	return result;
}

struct ep_verdict ep_verdict_make(ncclResult_t result)
{
	struct ep_verdict v = { .code = result };
	struct ep_error last;

	if (result != ncclSuccess) {
		ep_error_get(NULL, &last);
		snprintf(v.text, sizeof(v.text), "%.*s", (int)sizeof(v.text) - 1, last.text);
	}
	return v;
}

ncclResult_t ep_verdict_check(const struct ep_boot *boot, const void *verdicts, size_t stride,
			      const char *what)
{
	const unsigned char *p = verdicts;
	struct ep_verdict v;

	memcpy(&v, p + (size_t)boot->rank * stride, sizeof(v));
	if (v.code != ncclSuccess) {
		return (ncclResult_t)v.code; /* recorded when it happened */
	}
	for (int r = 0; r < boot->nranks; r++) {
		memcpy(&v, p + (size_t)r * stride, sizeof(v));
		if (v.code != ncclSuccess) {
			v.text[sizeof(v.text) - 1] = '\0';
			return ep_fail(ncclRemoteError, "%s failed on rank %d: %s", what, r,
				       v.text);
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_boot_verdicts(struct ep_boot *boot, const void *mine, void *all, size_t bytes,
			      const char *what)
{
	struct ep_verdict own;
	struct ep_error first;
	ncclResult_t result;

	memcpy(&own, mine, sizeof(own));
	ep_error_get(NULL, &first);
	all = boot->all ? all : NULL; /* a rank that receives nothing has reported it */
	result = ep_boot_allgather(boot, mine, all, bytes, what);
	if (result == ncclSuccess && all) {
		return ep_verdict_check(boot, all, bytes, what);
	}
	if (own.code != ncclSuccess && result != ncclSuccess) {
		(void)ep_fail_again(&first);
	}
	return own.code != ncclSuccess ? (ncclResult_t)own.code : result;
}

ncclResult_t ep_boot_agree(struct ep_boot *boot, ncclResult_t mine, const char *what)
{
	struct ep_verdict v = ep_verdict_make(mine);

	return ep_boot_verdicts(boot, &v, boot->all, sizeof(v), what);
}
