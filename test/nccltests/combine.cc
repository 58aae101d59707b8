// SPDX-License-Identifier: Apache-2.0
#include "nccl-tests-patch/ep_combine.cu"
#include "nccltests/harness.h"
