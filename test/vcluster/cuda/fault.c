/* SPDX-License-Identifier: Apache-2.0 */
/*
 * VC_FAULT is a list, separated by ';', of
 *   kill:rank=3,launch=5[,us=200]    SIGKILL at (or that long after) the rank's fifth launch
 *   stop:rank=3,launch=5[,us=200]    SIGSTOP likewise; both at the second launch after that at the latest, for the
 *                                    thread that sends the signal may get no processor when it should
 *   delay:rank=1,us=1000[,launch=2]  sleep before each launch, or before that one
 * Launches count from 1, kernels of a graph one by one as the graph is launched. A process without a
 * rank is rank 0.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cuda/device.h"

#define VC_LATEST_LAUNCH 2

static _Atomic int vc_pending;   /* signal that is to be sent; 0: none */
static _Atomic long vc_deadline; /* launch before which it is sent at the latest */

static void vc_fault_send(void)
{
	int number = atomic_exchange(&vc_pending, 0);

	if (number) {
		kill(getpid(), number);
	}
}

static void *vc_later_main(void *us)
{
	usleep((unsigned int)(uintptr_t)us);
	vc_fault_send();
	return NULL;
}

static void vc_fault_signal(int number, long us, long launch)
{
	pthread_t thread;

	atomic_store(&vc_deadline, launch + VC_LATEST_LAUNCH);
	atomic_store(&vc_pending, number);
	if (us && !pthread_create(&thread, NULL, vc_later_main, (void *)(uintptr_t)us)) {
		pthread_detach(thread);
		return;
	}
	vc_fault_send();
}

static long vc_fault_field(const char *rule, size_t len, const char *name, long fallback)
{
	size_t n = strlen(name);

	for (size_t i = 1; i + n < len; i++) {
		if ((rule[i - 1] == ':' || rule[i - 1] == ',') && !strncmp(rule + i, name, n) &&
		    rule[i + n] == '=') {
			return strtol(rule + i + n + 1, NULL, 0);
		}
	}
	return fallback;
}

static void vc_fault_rule(const char *rule, size_t len, long launch)
{
	long rank = vc_rank() < 0 ? 0 : vc_rank();
	long at = vc_fault_field(rule, len, "launch", 0);
	long us = vc_fault_field(rule, len, "us", 0);

	if (vc_fault_field(rule, len, "rank", rank) != rank || (at && at != launch)) {
		return;
	}
	if (!strncmp(rule, "delay:", 6)) {
		usleep((unsigned int)us);
	} else if (!strncmp(rule, "kill:", 5) && at) {
		vc_fault_signal(SIGKILL, us, launch);
	} else if (!strncmp(rule, "stop:", 5) && at) {
		vc_fault_signal(SIGSTOP, us, launch);
	} else {
		vc_die(VC_EXIT_ILLEGAL, "VC_FAULT: cannot understand '%.*s'", (int)len, rule);
	}
}

void vc_fault_at_launch(int device)
{
	static _Atomic long launches;
	const char *rule = getenv("VC_FAULT");
	long launch = atomic_fetch_add(&launches, 1) + 1;

	(void)device;
	if (launch >= atomic_load(&vc_deadline)) {
		vc_fault_send();
	}
	while (rule && *rule) {
		size_t len = strcspn(rule, ";");

		if (len) {
			vc_fault_rule(rule, len, launch);
		}
		rule += len + (rule[len] == ';');
	}
}
