/* SPDX-License-Identifier: Apache-2.0 */
/* Sites of device-side waits: shared by kernels, host and virtual cluster. Plain C. */
#ifndef EP_DEVICE_WAIT_SITE_H
#define EP_DEVICE_WAIT_SITE_H

enum ep_wait_site {
	EP_WAIT_NONE = 0,
	EP_WAIT_PROGRESS,       /* peer has left the previous user of the buffer bank */
	EP_WAIT_DISPATCH_COUNT, /* peer's counts of this dispatch */
	EP_WAIT_DISPATCH_ROW,   /* a row that the peer announced */
	EP_WAIT_COMBINE_ROW,    /* a row that the peer owes to one of our tokens */
	EP_WAIT_CLEAN,          /* peer's arrival at the mask clean-up */
	EP_WAIT_RDMA_SLOT,      /* a free send queue entry towards the peer */
	EP_WAIT_RDMA_COMPLETION,
	EP_WAIT_AGREEMENT, /* another block of this rank, which decides whether the peer came */
	EP_WAIT_HT_COUNT,  /* peer's counts of this routing */
	EP_WAIT_HT_TABLE,  /* peer's word that it has stored what each of its rows is */
	EP_WAIT_SIGNATURE, /* peer's word of what it passes to this operation */
	EP_WAIT_HT_ROWS,   /* a unit of rows that the peer writes into our ring */
	EP_WAIT_HT_CREDIT, /* peer's word that it has read a unit out of its ring */
	EP_WAIT_HT_DONE,   /* peer's word that it has read and written all it wanted here */
	EP_WAIT_BULK,      /* a bulk copy into shared memory, or warps that have yet to arrive */
	EP_WAIT_SITES
};

#endif
