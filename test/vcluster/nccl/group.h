/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: a blocking call between ncclGroupStart and ncclGroupEnd only leaves a job; the jobs run at
 * the same time at the group's end.
 */
#ifndef VC_GROUP_H
#define VC_GROUP_H

#include <pthread.h>
#include <nccl.h>

struct vc_job {
	ncclResult_t (*run)(struct vc_job *job);
	int device;
	ncclResult_t result;
	pthread_t thread;
	struct vc_job *next;
};

/* Runs the job, or leaves it for the end of the group. */
ncclResult_t vc_job_submit(struct vc_job *job);

#endif
