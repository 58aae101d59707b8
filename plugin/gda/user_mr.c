/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callers' memory that NICs read from. It is registered by whole allocations, when it is used first,
 * and stays registered while it lives, for the group's life at most: kernels that use the keys may be
 * queued, and graphs hold them. Where an allocation was freed and another one has its addresses, the
 * driver's number for it shows it: no other allocation of the process ever has that number.
 */
#include <cuda.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"
#include "gda/gda_memory.h"
#include "gda/state.h"
#include "gda/user_mr.h"

#define EP_GDA_USER_MRS 16

/* An allocation. `mr` of each NIC, or all NULL, and `why`. */
struct ep_gda_user_mr {
	uintptr_t start;
	uint64_t bytes; /* 0: unused */
	uint64_t id;
	struct ibv_mr *mr[EP_GDA_MAX_NICS];
	struct ep_reason why;
};

typedef CUresult (*ep_cu_get_fn)(void *, CUpointer_attribute, CUdeviceptr);
typedef CUresult (*ep_cu_extent_fn)(CUdeviceptr *, size_t *, CUdeviceptr);

static ep_cu_get_fn ep_cu_get_attribute;
static ep_cu_extent_fn ep_cu_extent;
static pthread_once_t ep_cu_get_once = PTHREAD_ONCE_INIT;

static void ep_cu_get_init(void)
{
	(void)ep_driver_find("cuPointerGetAttribute", &ep_cu_get_attribute);
	(void)ep_driver_find("cuMemGetAddressRange", &ep_cu_extent);
}

/*
 * Where the allocation of [p, p + bytes) begins and ends. (Not CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
 * which reports the reserved addresses: several allocations may be mapped there, or holes be left.)
 */
static const char *ep_gda_user_mr_ask(uintptr_t p, uint64_t bytes, struct ep_gda_user_mr *mr)
{
	unsigned long long id = 0;
	CUdeviceptr start = 0;
	size_t size = 0;

	pthread_once(&ep_cu_get_once, ep_cu_get_init);
	if (!ep_cu_get_attribute || !ep_cu_extent ||
	    ep_cu_get_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p) != CUDA_SUCCESS ||
	    ep_cu_extent(&start, &size, p) != CUDA_SUCCESS) {
		return "the driver does not report which allocation it is of";
	}
	if (p < start || bytes > size || p - start > size - bytes) {
		return "it is not all of one allocation";
	}
	mr->start = (uintptr_t)start;
	mr->bytes = size;
	mr->id = id;
	return NULL;
}

static bool ep_gda_user_mr_same(const struct ep_gda_user_mr *a, const struct ep_gda_user_mr *b)
{
	return a->id == b->id && a->start == b->start && a->bytes == b->bytes;
}

static void ep_gda_user_mr_take_back(struct ep_gda *g, struct ep_gda_user_mr *mr)
{
	for (int n = 0; n < EP_GDA_MAX_NICS; n++) {
		if (mr->mr[n] && g->nic[n].base.v->ibv_dereg_mr(mr->mr[n]) != 0) {
			EP_INFO(EP_LOG_NET, "%s: memory stays registered: %s", g->nic[n].base.name,
				strerror(errno));
		}
		mr->mr[n] = NULL;
	}
}

/* With all NICs, or none; then mr->why has the reason. */
static void ep_gda_user_mr_register(struct ep_gda *g, struct ep_gda_user_mr *mr)
{
	for (int n = 0; n < g->nnics; n++) {
		mr->mr[n] = ep_gda_register(&g->nic[n], (void *)mr->start, mr->bytes,
					    g->env.relaxed ? IBV_ACCESS_RELAXED_ORDERING : 0, true,
					    &mr->why);
		if (!mr->mr[n]) {
			ep_gda_user_mr_take_back(g, mr);
			return;
		}
	}
}

/*
 * Room for another allocation, or NULL. What was freed since it was registered goes: its owner has
 * waited for all that used it, and its memory is only free when no NIC has it registered.
 */
static struct ep_gda_user_mr *ep_gda_user_mr_room(struct ep_gda *g)
{
	struct ep_gda_user_mr *room = NULL;

	for (int i = EP_GDA_USER_MRS - 1; i >= 0; i--) {
		struct ep_gda_user_mr *s = &g->sources[i], now = { 0 };

		if (s->bytes && (ep_gda_user_mr_ask(s->start, s->bytes, &now) ||
				 !ep_gda_user_mr_same(s, &now))) {
			ep_gda_user_mr_take_back(g, s);
			s->bytes = 0;
		}
		if (!s->bytes) {
			room = s;
		}
	}
	return room;
}

/* The entry of that allocation, which is made unless it is there; NULL: there is no room. */
static struct ep_gda_user_mr *ep_gda_user_mr_entry(struct ep_gda *g,
						   const struct ep_gda_user_mr *want)
{
	struct ep_gda_user_mr *s;

	for (int i = 0; i < EP_GDA_USER_MRS; i++) {
		if (ep_gda_user_mr_same(&g->sources[i], want)) {
			return &g->sources[i];
		}
	}
	s = ep_gda_user_mr_room(g);
	if (s) {
		*s = *want;
		ep_gda_user_mr_register(g, s);
	}
	return s;
}

const char *ep_gda_user_mr_find(struct ep_gda *g, void *p, uint64_t bytes,
				struct ep_mlx5_source *out)
{
	struct ep_gda_user_mr want = { 0 }, *s;
	const char *why = ep_gda_user_mr_ask((uintptr_t)p, bytes, &want);

	if (why) {
		return why;
	}
	if (!g->sources) {
		g->sources = calloc(EP_GDA_USER_MRS, sizeof(*g->sources));
	}
	if (!g->sources) {
		return "out of host memory";
	}
	s = ep_gda_user_mr_entry(g, &want);
	if (!s) {
		return "NICs read from 16 other allocations, and a group takes no more";
	}
	if (!s->mr[0]) {
		return s->why.text;
	}
	out->addr = (uintptr_t)p;
	for (int n = 0; n < g->nnics; n++) {
		out->lkey[n] = s->mr[n]->lkey;
	}
	return NULL;
}

void ep_gda_user_mrs_free(struct ep_gda *g)
{
	for (int i = 0; g && g->sources && i < EP_GDA_USER_MRS; i++) {
		ep_gda_user_mr_take_back(g, &g->sources[i]);
	}
	if (g) {
		free(g->sources);
		g->sources = NULL;
	}
}
