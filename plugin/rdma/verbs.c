/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs and libmlx5 are loaded, and two calls that their headers have inline. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "rdma/verbs.h"

struct verbs_entry {
	const char *name, *version;
	void *call; /* address of the pointer to set */
	bool needed;
};

static struct ep_verbs verbs_table;
static struct ep_mlx5dv mlx5dv_table;
static char verbs_why[256], mlx5dv_why[256];
static pthread_once_t verbs_once = PTHREAD_ONCE_INIT, mlx5dv_once = PTHREAD_ONCE_INIT;

/*
 * Loads a library and fills a table with its calls; `why` has the reason on failure. The library
 * stays loaded: providers keep threads and fork handlers in it.
 */
static void verbs_fill(const char *file, const char *package, const struct verbs_entry *entry,
		       size_t n, char *why, size_t size)
{
	void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		snprintf(why, size, "%s cannot be loaded (%s): install %s", file, dlerror(),
			 package);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		void *address = dlvsym(library, entry[i].name, entry[i].version);

		if (!address) {
			address = dlsym(library, entry[i].name);
		}
		if (!address && entry[i].needed) {
			snprintf(why, size, "%s has no %s (%s): a newer %s is needed", file,
				 entry[i].name, entry[i].version, package);
			return;
		}
		/* ISO C does not convert object pointers to function pointers. */
		memcpy(entry[i].call, &address, sizeof(address));
	}
}

#define EP_VERBS_NEEDED(n, v) { #n, v, &verbs_table.n, true },
#define EP_VERBS_OPTIONAL(n, v) { #n, v, &verbs_table.n, false },
#define EP_MLX5DV_NEEDED(n, v) { #n, v, &mlx5dv_table.n, true },
#define EP_MLX5DV_OPTIONAL(n, v) { #n, v, &mlx5dv_table.n, false },

/*
 * Has libibverbs protect the memory that is registered from now on in a fork(). There a kernel that
 * does not copy pinned pages may leave NICs with pages that this process has lost. libibverbs makes
 * the same call itself where RDMAV_FORK_SAFE or IBV_FORK_SAFE is set; a second call changes
 * nothing.
 */
static void verbs_fork(const struct ep_verbs *verbs)
{
	int error = (verbs->ibv_fork_init)();

	if (error) {
		EP_WARN("memory of NICs is not kept whole in a fork(): %s%s; a child may break "
			"connections",
			strerror(error),
			error == EINVAL
				? ", other code of this process has registered memory "
				  "before (RDMAV_FORK_SAFE=1 makes libibverbs begin earlier)"
				: "");
	} else if (verbs->ibv_is_fork_initialized) {
		EP_INFO(EP_LOG_INIT | EP_LOG_NET, "fork(): %s",
			(verbs->ibv_is_fork_initialized)() == IBV_FORK_UNNEEDED
				? "the kernel copies pages of NICs for a child"
				: "pages of NICs are kept from a child, by libibverbs");
	}
}

static void verbs_init(void)
{
	static const struct verbs_entry entry[] = { EP_VERBS_CALLS(EP_VERBS_NEEDED,
								   EP_VERBS_OPTIONAL) };

	verbs_fill("libibverbs.so.1", "libibverbs1", entry, sizeof(entry) / sizeof(entry[0]),
		   verbs_why, sizeof(verbs_why));
	if (!verbs_why[0]) {
		verbs_fork(&verbs_table);
	}
}

static void mlx5dv_init(void)
{
	static const struct verbs_entry entry[] = { EP_MLX5DV_CALLS(EP_MLX5DV_NEEDED,
								    EP_MLX5DV_OPTIONAL) };

	verbs_fill("libmlx5.so.1", "ibverbs-providers", entry, sizeof(entry) / sizeof(entry[0]),
		   mlx5dv_why, sizeof(mlx5dv_why));
}

const struct ep_verbs *ep_verbs(const char **why)
{
	pthread_once(&verbs_once, verbs_init);
	*why = verbs_why;
	return verbs_why[0] ? NULL : &verbs_table;
}

const struct ep_mlx5dv *ep_mlx5dv(const char **why)
{
	pthread_once(&mlx5dv_once, mlx5dv_init);
	*why = mlx5dv_why;
	return mlx5dv_why[0] ? NULL : &mlx5dv_table;
}

int ep_verbs_query_port(const struct ep_verbs *verbs, struct ibv_context *ctx, uint8_t port,
			struct ibv_port_attr *attr)
{
	struct verbs_context *extended = verbs_get_ctx_op(ctx, query_port);

	memset(attr, 0, sizeof(*attr));
	if (extended) {
		return extended->query_port(ctx, port, attr, sizeof(*attr));
	}
	return (verbs->ibv_query_port)(ctx, port, (struct _compat_ibv_port_attr *)attr);
}

struct ibv_mr *ep_verbs_reg_mr(const struct ep_verbs *verbs, struct ibv_pd *pd, void *addr,
			       size_t bytes, unsigned int access)
{
	if (verbs->ibv_reg_mr_iova2) {
		return verbs->ibv_reg_mr_iova2(pd, addr, bytes, (uintptr_t)addr, access);
	}
	access &= ~(unsigned int)IBV_ACCESS_OPTIONAL_RANGE;
	return (verbs->ibv_reg_mr)(pd, addr, bytes, (int)access);
}
