/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Name, version, commit and build type of a library or program: one text, which `strings` and
 * `ep_report --pid` find in its file. Every product adds the source that build.c.in becomes; what
 * has none of its own (a test that is made of the library's objects) gets the text of
 * plain_build.c.
 */
#ifndef EP_CORE_BUILD_H
#define EP_CORE_BUILD_H

#define EP_BUILD_NAME "Switchyard "

extern const char ep_build_text[];

#endif
