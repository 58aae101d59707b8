/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing: meson.build says why. */
extern int nothing;
