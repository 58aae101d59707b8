/* SPDX-License-Identifier: Apache-2.0 */
/* Memory faults of kernels. */
#ifndef VC_FAULT_H
#define VC_FAULT_H

void vc_fault_init(void);
void vc_fault_thread_init(void);

#endif
