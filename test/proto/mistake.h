// SPDX-License-Identifier: Apache-2.0
/*
 * Tables of mistakes. A list is a macro with a line M(name, statements, result, part) per mistake: the
 * statements spoil the right arguments of a call in `c`, and the call must be refused with `result`
 * and a reason that contains `part`. MISTAKES makes a table of a list.
 */
#ifndef TEST_PROTO_MISTAKE_H
#define TEST_PROTO_MISTAKE_H

#include "support/bench.h"
#include "support/watch.h"

#define IA ncclInvalidArgument
#define IU ncclInvalidUsage

struct call; /* the test's */

struct mistake {
	const char *name;
	void (*spoil)(struct call *c);
	ncclResult_t want;
	const char *part;
};

#define MISTAKE_SPOIL(name_, code_, want_, part_)                                                  \
	static void name_(struct call *c)                                                          \
	{                                                                                          \
		code_;                                                                             \
	}
#define MISTAKE_ROW(name_, code_, want_, part_) { #name_, name_, want_, part_ },
#define MISTAKES(table_, list_)                                                                    \
	list_(MISTAKE_SPOIL) static const struct mistake table_[] = { list_(MISTAKE_ROW) };

#define MISTAKE_COUNT(table_) (sizeof(table_) / sizeof(table_[0]))

#endif
