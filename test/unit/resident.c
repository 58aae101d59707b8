/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How groups of one process share a GPU's SMs: rules that hold for any of them, in any order of
 * creation, some shares by name, and when a warning is due.
 */
#include <string.h>
#include "ep/ep.h"
#include "support/check.h"
#include "support/world.h"

#define SMS 132u
#define MOST 40

static struct ep_resident groups[MOST];

/* `chosen`: blocks of operations whose number the caller has chosen; 0: all are AUTO. */
static struct ep_resident *make(int i, int device, bool all_wait, uint32_t chosen, uint32_t most)
{
	groups[i] = (struct ep_resident){ .device = device,
					  .sm_count = SMS,
					  .all_wait = all_wait,
					  .chosen = chosen,
					  .most = most };
	ep_resident_add(groups + i);
	return groups + i;
}

static void drop(int n)
{
	for (int i = 0; i < n; i++) {
		ep_resident_remove(groups + i);
	}
}

/*
 * One of each keeps all that it would have alone: low latency's receivers are behind its senders.
 */
static void test_usual(void)
{
	struct ep_resident *low = make(0, 0, false, 0, SMS), *high = make(1, 0, true, 0, 105);
	char text[80];

	CHECK_INT(ep_resident_limit(low), SMS);
	CHECK_INT(ep_resident_limit(high), 105);
	make(2, 1, true, 0, 105); /* another device */
	CHECK_INT(ep_resident_limit(high), 105);
	ep_resident_describe(low, text, sizeof(text));
	CHECK(strstr(text, "2 groups of this process may hold 237 of this GPU's 132 SMs"));
	make(3, 0, true, 0, 105);
	CHECK_INT(ep_resident_limit(high), 65);
	ep_resident_remove(groups + 3);
	CHECK_INT(ep_resident_limit(high), 105);
	ep_resident_remove(groups + 1);
	ep_resident_describe(low, text, sizeof(text));
	CHECK_INT(text[0], '\0');
	drop(3);
}

static void test_low(void)
{
	static const uint32_t limits[] = { 132, 131, 65, 43, 32 };

	for (int n = 1; n <= 5; n++) {
		make(n - 1, 0, false, 0, SMS);
		for (int i = 0; i < n; i++) {
			CHECK_INT(ep_resident_limit(groups + i), limits[n - 1]);
		}
	}
	drop(5);
}

/* What the caller has chosen stays, and is warned of if it cannot work. */
static void test_chosen(void)
{
	make(0, 0, true, 100, 100);
	make(1, 0, true, 0, 105);
	CHECK_INT(ep_resident_limit(groups), 100);
	CHECK_INT(ep_resident_limit(groups + 1), 32);
	make(2, 0, true, 100, 100);
	CHECK_INT(ep_resident_limit(groups), 100);
	CHECK_INT(ep_resident_limit(groups + 1), 1);
	drop(3);
	/* what a group has chosen for some of its operations, and what others get beside that */
	make(0, 0, true, 40, 105);
	CHECK_INT(ep_resident_limit(groups), 105);
	make(1, 0, true, 0, 105);
	CHECK_INT(ep_resident_limit(groups), 40 + 46);
	CHECK_INT(ep_resident_limit(groups + 1), 46);
	drop(2);
}

/* Does no order of launches lock up? As the header says it, of the limits alone. */
static bool safe(int n, bool *any_auto)
{
	uint32_t high = 0, low = 0, receivers = 0;

	*any_auto = true;
	for (int i = 0; i < n; i++) {
		uint32_t limit = ep_resident_limit(groups + i);

		CHECK(limit >= 1 && limit <= groups[i].most);
		if (groups[i].all_wait) {
			high += limit;
			*any_auto &= !groups[i].chosen;
		} else {
			low++;
			receivers += limit;
		}
	}
	if (!low) {
		return high <= SMS;
	}
	/* each group's senders find an SM beside all the others: the smallest one has it worst */
	for (int i = 0; i < n; i++) {
		if (!groups[i].all_wait &&
		    high + receivers - ep_resident_limit(groups + i) >= SMS) {
			return false;
		}
	}
	return high < SMS;
}

static void test_random(void)
{
	uint64_t state = 7;

	for (int round = 0; round < 3000; round++) {
		int n = 1 + (int)world_draw(&state, 8);
		bool any_auto;

		check_context("round %d", round);
		for (int i = 0; i < n; i++) {
			bool high = world_draw(&state, 2), automatic = world_draw(&state, 4) != 0;
			uint32_t chosen = automatic ? 0 : 1 + (uint32_t)world_draw(&state, SMS);
			uint32_t most = automatic || !world_draw(&state, 3) ? (high ? 105 : SMS)
									    : chosen;

			make(i, 0, high, chosen, most > chosen ? most : chosen);
		}
		if (!safe(n, &any_auto)) {
			CHECK(!any_auto); /* only what the caller has chosen can be too much */
		}
		drop(n);
	}
	check_context("%s", "");
}

int main(void)
{
	test_usual();
	test_low();
	test_chosen();
	test_random();
	return check_end();
}
