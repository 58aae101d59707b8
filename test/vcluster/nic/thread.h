/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that serves all NICs of the process. */
#ifndef VN_THREAD_H
#define VN_THREAD_H

/* With the first context: starts the wire and the thread. 0 or an errno. */
int vn_thread_start(void);
/* Wakes the thread. */
void vn_thread_wake(void);

#endif
