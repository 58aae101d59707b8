/* SPDX-License-Identifier: Apache-2.0 */
/* Callers' memory that NICs read from. */
#ifndef EP_GDA_USER_MR_H
#define EP_GDA_USER_MR_H

#include "gda/gda.h"

/*
 * Registers the allocation that holds [p, p + bytes) with all NICs, unless it is, and gives the name that
 * kernels use. Returns NULL, or why that cannot be, and then *out is not written; the text is good until
 * the next call. It waits for nothing and uses no stream. One thread at a time.
 */
const char *ep_gda_user_mr_find(struct ep_gda *gda, void *p, uint64_t bytes,
				struct ep_mlx5_source *out);

/* Takes all of it back. No kernel of this rank runs. NULL is nothing. */
void ep_gda_user_mrs_free(struct ep_gda *gda);

#endif
