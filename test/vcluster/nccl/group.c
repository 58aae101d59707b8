/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: the blocking calls of one thread run at the same time, each on a thread of its own. */
#include <stdlib.h>
#include "cuda/device.h"
#include "nccl/comm.h"
#include "nccl/group.h"

/* The header declares them without parameters. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

static __thread int vc_depth;
static __thread struct vc_job *vc_jobs;

static void *vc_job_main(void *arg)
{
	struct vc_job *job = arg;

	cudaSetDevice(vc_device_ordinal(job->device));
	job->result = job->run(job);
	return NULL;
}

/* Owns the job from here on. */
ncclResult_t vc_job_submit(struct vc_job *job)
{
	ncclResult_t result;

	job->device = vc_device_current();
	if (!vc_depth) {
		result = job->run(job);
		free(job);
		return result;
	}
	job->next = vc_jobs;
	vc_jobs = job;
	return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
	vc_depth++;
	return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
	struct vc_job *job, *next;
	ncclResult_t result = ncclSuccess;

	if (!vc_depth) {
		return vc_nccl_error(NULL, ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
	}
	if (--vc_depth) {
		return ncclSuccess;
	}
	for (job = vc_jobs; job; job = job->next) {
		if (pthread_create(&job->thread, NULL, vc_job_main, job)) {
			job->result = vc_nccl_error(NULL, ncclSystemError, "no thread");
			job->thread = pthread_self();
		}
	}
	for (job = vc_jobs; job; job = next) {
		next = job->next;
		if (!pthread_equal(job->thread, pthread_self())) {
			pthread_join(job->thread, NULL);
		}
		result = result ? result : job->result;
		free(job);
	}
	vc_jobs = NULL;
	return result;
}
