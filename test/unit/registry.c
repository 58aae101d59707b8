/* SPDX-License-Identifier: Apache-2.0 */
/* The set of live objects against a plain list, with additions and removals in any order. */
#include "core/registry.h"
#include "support/world.h"

#define OBJECTS 3000
#define STEPS 60000

/* The same addresses again and again would meet in few places of the table, or in none. */
static unsigned char memory[OBJECTS << 8], place[OBJECTS];
static enum ep_registry_kind is[OBJECTS];

static const void *object(uint32_t k)
{
	return memory + ((size_t)k << 8) + place[k];
}

int main(void)
{
	uint64_t state = 1;

	CHECK(!ep_registry_has(object(0), EP_REGISTRY_GROUP) &&
	      !ep_registry_remove(object(0), EP_REGISTRY_GROUP));
	for (uint32_t i = 0; i < STEPS; i++) {
		/* few at first, then many, and few again */
		uint32_t among = i < STEPS / 3 || i > STEPS / 3 * 2 ? 30 : OBJECTS;
		uint32_t k = (uint32_t)world_draw(&state, among);
		enum ep_registry_kind kind = (enum ep_registry_kind)(2 + world_draw(&state, 3));

		CHECK(ep_registry_has(object(k), kind) == (is[k] == kind));
		if (is[k] == EP_REGISTRY_NONE) {
			NEED(ep_registry_add(object(k), kind));
			is[k] = kind;
		} else {
			CHECK(ep_registry_remove(object(k), kind) == (is[k] == kind));
			if (is[k] == kind) {
				is[k] = EP_REGISTRY_NONE;
				place[k] = (unsigned char)world_draw(&state, 256);
			}
		}
	}
	for (uint32_t k = 0; k < OBJECTS; k++) {
		for (int kind = 2; kind <= 4; kind++) {
			CHECK(ep_registry_has(object(k), (enum ep_registry_kind)kind) ==
			      ((int)is[k] == kind));
		}
		CHECK(ep_registry_remove(object(k), is[k]) == (is[k] != EP_REGISTRY_NONE));
		CHECK(!ep_registry_has(object(k), is[k] ? is[k] : EP_REGISTRY_GROUP));
	}
	NEED(ep_registry_add(object(0), EP_REGISTRY_MAKING));
	CHECK(!ep_registry_has(object(0), EP_REGISTRY_GROUP));
	ep_registry_made(object(0), EP_REGISTRY_GROUP);
	CHECK(ep_registry_has(object(0), EP_REGISTRY_GROUP) &&
	      ep_registry_remove(object(0), EP_REGISTRY_GROUP));
	return check_end();
}
