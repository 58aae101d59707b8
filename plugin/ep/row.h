/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of rows of a dispatch: for dispatches, and for the question whether one is possible. */
#ifndef EP_EP_ROW_H
#define EP_EP_ROW_H

#include "ep/group_config.h"

/* That the algorithm has the recipe. */
ncclResult_t ep_row_check_recipe(const struct ep_limits *limits, ncclEpDispQuant_t recipe);

/* Types of inputs->tokens and outputs->tokens. */
bool ep_dtype_is_token(ncclDataType_t type);
ncclResult_t ep_row_check_types(ncclEpDispQuant_t recipe, ncclDataType_t in, ncclDataType_t out);

/* Rows that recipe DS_FP8E3M4 makes: of so many elements, and what they take with their scales. */
ncclResult_t ep_row_check_quantised(size_t hidden);
uint64_t ep_row_quantised_bytes(size_t hidden);

/* That rows of so many bytes, scales included, fit the group. */
ncclResult_t ep_row_check_budget(const struct ep_group_config *config, ncclEpDispQuant_t recipe,
				 uint64_t bytes);

#endif
