/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Macros by which one header serves C, nvcc and the C++ compiler of the virtual cluster's kernels.
 */
#ifndef EP_DEVICE_SIMT_LANGUAGE_H
#define EP_DEVICE_SIMT_LANGUAGE_H

#if defined(__cplusplus) && !defined(_Static_assert)
#define _Static_assert static_assert
#endif
#ifdef __CUDACC__
#define EP_HOST_DEV static inline __host__ __device__
#else
#define EP_HOST_DEV static inline
#endif

#endif
