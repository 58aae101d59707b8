/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that serves all NICs of the process. */
#ifndef VN_THREAD_H
#define VN_THREAD_H

#include <stdbool.h>
#include <stdint.h>

/* With the first context: starts the wire and the thread. 0 or an errno. */
int vn_thread_start(void);
/* Serves all that is there now; false: nothing was. *watched: some queue can be rung by its doorbell. */
bool vn_turn(uint32_t turn, bool *watched);
/* Wakes the thread. */
void vn_thread_wake(void);

#endif
