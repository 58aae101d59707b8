/* SPDX-License-Identifier: Apache-2.0 */
/* Which NICs there are and how they behave; messages; bits of command buffers. */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "nic/nic.h"

#define VN_ONCE 256
#define VN_MTU 5 /* IBV_MTU_4096 */

struct vn_config vn_config;
static uint64_t vn_random_state;
static const char *vn_once_logged[VN_ONCE];
static pthread_mutex_t vn_log_lock = PTHREAD_MUTEX_INITIALIZER;

const char *vn_env(const char *name, const char *fallback)
{
	const char *text = getenv(name);

	return text && *text ? text : fallback;
}

long vn_env_long(const char *name, long fallback)
{
	const char *text = vn_env(name, NULL);
	char *end;
	long value;

	if (!text) {
		return fallback;
	}
	errno = 0;
	value = strtol(text, &end, 0);
	if (errno || *end) {
		fprintf(stderr, "nic: %s=%s is not a number\n", name, text);
		_exit(87);
	}
	return value;
}

uint64_t vn_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t vn_random(void)
{
	uint64_t x = vn_random_state;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	vn_random_state = x;
	return x * 0x2545f4914f6cdd1dull >> 8;
}

static void vn_log_list(const char *fmt, va_list list)
{
	char text[640];
	const char *rank = getenv("RANK");
	int at = snprintf(text, sizeof(text), "nic: %s %s: ", rank ? "rank" : "node",
			  rank ? rank : vn_env("VC_NODE", "0"));

	at += vsnprintf(text + at, sizeof(text) - (size_t)at - 1, fmt, list);
	if (at > (int)sizeof(text) - 2) {
		at = (int)sizeof(text) - 2;
	}
	text[at] = '\n';
	text[at + 1] = 0;
	fputs(text, stderr);
}

void vn_log(const char *fmt, ...)
{
	va_list list;

	va_start(list, fmt);
	vn_log_list(fmt, list);
	va_end(list);
}

void vn_log_once(const char *fmt, ...)
{
	va_list list;
	int i;

	pthread_mutex_lock(&vn_log_lock);
	for (i = 0; i < VN_ONCE && vn_once_logged[i] && vn_once_logged[i] != fmt; i++) {
	}
	if (i < VN_ONCE && !vn_once_logged[i]) {
		vn_once_logged[i] = fmt;
		va_start(list, fmt);
		vn_log_list(fmt, list);
		va_end(list);
	}
	pthread_mutex_unlock(&vn_log_lock);
}

void vn_bug(const char *fmt, ...)
{
	va_list list;

	fflush(stdout);
	va_start(list, fmt);
	vn_log_list(fmt, list);
	va_end(list);
	if (vn_config.strict) {
		vn_log("VC_NIC_STRICT: the program ends here (seed %llu)",
		       (unsigned long long)vn_config.seed);
		fflush(stderr);
		_exit(VN_EXIT);
	}
}

static void vn_profile(const char *word)
{
	struct vn_config *c = &vn_config;

	if (!strcmp(word, "cx7")) {
		c->ooo_all = c->ooo_force = c->nc_dedicated = false;
		c->tier = 0;
	} else if (!strcmp(word, "cx8")) {
		c->ooo_all = c->ooo_force = c->nc_dedicated = true;
		c->tier = 1;
	} else if (!strcmp(word, "no_gpu_umem")) {
		c->gpu_umem = false;
	} else if (!strcmp(word, "real_time")) {
		c->ts = 1;
	} else if (!strcmp(word, "old_clock")) {
		c->ts = 0;
	} else if (!strcmp(word, "small_sq")) {
		c->send_wr = 32;
	} else if (!strcmp(word, "few_reads")) {
		c->init_rd = 2;
	} else if (!strcmp(word, "no_atomics")) {
		c->no_atomics = true;
	} else if (!strcmp(word, "odd_no_atomics")) {
		c->odd_no_atomics = true;
	} else if (!strcmp(word, "no_dmabuf")) {
		c->no_dmabuf = true;
	} else if (!strcmp(word, "no_wc")) {
		c->no_wc = true;
	} else if (!strcmp(word, "no_ece")) {
		c->no_ece = true;
	} else if (!strcmp(word, "own_ece")) {
		c->own_ece = 1;
	} else if (!strcmp(word, "odd_own_ece")) {
		c->own_ece = 2;
	} else if (!strcmp(word, "no_read_mr")) {
		c->no_read_mr = true;
	} else if (!strcmp(word, "one_read_mr")) {
		c->one_read_mr = true;
	} else if (!strcmp(word, "no_rtr")) {
		c->no_rtr = true;
	} else if (!strcmp(word, "quiet")) {
		c->quiet = true;
	} else if (!strcmp(word, "reports_order")) {
		c->reports_order = true;
	} else if (!strcmp(word, "scattered")) {
		c->scattered = true;
	} else if (!strcmp(word, "few_rtr")) {
		c->few_rtr = true;
	} else if (!strcmp(word, "fatal_rtr")) {
		c->fatal_rtr = true;
	} else if (!strcmp(word, "few_cqes")) {
		c->few_cqes = true;
	} else if (!strcmp(word, "late_rtr")) {
		c->late_rtr = true;
	} else if (!strcmp(word, "old_fork")) {
		c->old_fork = true;
	} else if (!strcmp(word, "bond")) {
		c->lag = VN_MEMBERS;
	} else if (!strcmp(word, "bond_late")) {
		c->lag = VN_MEMBERS;
		c->lag_late = true;
	} else if (!strcmp(word, "bond_hash")) {
		c->lag = VN_MEMBERS;
		c->lag_hash = true;
	} else if (!strcmp(word, "ib")) {
		c->ib = true;
	} else if (!strcmp(word, "routed")) {
		c->ib = c->routed = true;
	} else if (!strcmp(word, "rails")) {
		c->ib = c->rails = true;
	} else if (!strcmp(word, "roce")) {
		c->ib = c->routed = c->rails = false;
	} else if (!strcmp(word, "rxe")) {
		c->mlx5 = false;
		c->tier = 0;
	} else {
		fprintf(stderr,
			"nic: VC_NIC_PROFILE: %s is none of cx7, cx8, no_gpu_umem, no_uar_map, ib, "
			"routed, rails, roce, rxe, real_time, old_clock, small_sq, few_reads, no_atomics, odd_no_atomics, "
			"no_dmabuf, no_wc, no_ece, own_ece, odd_own_ece, bond, bond_late, bond_hash, no_read_mr, one_read_mr, quiet, reports_order, no_rtr, few_rtr, fatal_rtr, late_rtr, few_cqes, old_fork, scattered\n",
			word);
		_exit(87);
	}
}

static uint32_t vn_hash(const char *text)
{
	uint32_t h = 2166136261u;

	for (; *text; text++) {
		h = (h ^ (uint8_t)*text) * 16777619u;
	}
	return h;
}

static uint32_t vn_net(void)
{
	const char *text = vn_env("VC_NIC_NET", "127.1");
	unsigned int a, b;
	char rest;

	if (sscanf(text, "%u.%u%c", &a, &b, &rest) != 2 || a > 255 || b > 255) {
		fprintf(stderr, "nic: VC_NIC_NET=%s is not like 127.1\n", text);
		_exit(87);
	}
	return a << 24 | b << 16;
}

/* Ranks of one run use the same ports. Another run has other ports, or its `run` differs. */
static void vn_run_identity(void)
{
	const char *run = vn_env("VC_DIR", vn_env("MASTER_PORT", "-"));
	uint32_t h = vn_hash(run);

	vn_config.run = h;
	vn_config.port = (uint16_t)vn_env_long("VC_NIC_PORT", 10000 + h % 20000);
}

void vn_config_load(void)
{
	struct vn_config *c = &vn_config;
	char words[256], *save, *word;
	const char *rank;

	c->nics = (int)vn_env_long("VC_NICS", vn_env_long("VC_GPUS", 1));
	if (c->nics > VN_NICS) {
		c->nics = VN_NICS;
	}
	c->node = (int)vn_env_long("VC_NODE", 0);
	c->mlx5 = c->gpu_umem = c->ooo_rw = true;
	c->ts = 2;
	c->send_wr = VN_SEND_WR;
	c->init_rd = 16;
	vn_profile("cx8");
	snprintf(words, sizeof(words), "%s", vn_env("VC_NIC_PROFILE", ""));
	for (word = strtok_r(words, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		vn_profile(word);
	}
	c->tier = (int)vn_env_long("VC_NIC_TIER", c->tier);
	c->mtu = (int)vn_env_long("VC_NIC_MTU", VN_MTU);
	c->strict = (int)vn_env_long("VC_NIC_STRICT", 1);
	c->step = vn_env_long("VC_NIC_STEP", 0) != 0;
	c->retry_ms = (uint32_t)vn_env_long("VC_NIC_RETRY_MS", 0);
	c->piece = (uint32_t)vn_env_long("VC_NIC_PIECE", 64);
	c->link_gbps = (uint32_t)vn_env_long("VC_NIC_GBPS", 0);
	c->gpu_dmabuf = vn_env_long("VC_NIC_DMABUF", 0) != 0;
	c->verbose = vn_env_long("VC_NIC_VERBOSE", 0) != 0;
	c->stats = vn_env_long("VC_NIC_STATS", 0) != 0;
	c->seed = (uint64_t)vn_env_long("VC_NIC_SEED", vn_env_long("VC_SEED", 1));
	c->net = vn_net();
	if (c->nics < 0 || c->node < 0 || c->node > 255 || c->tier < 0 || c->tier > 2 ||
	    c->mtu < 1 || c->mtu > 5 || (c->piece != 64 && c->piece != 128)) {
		fprintf(stderr,
			"nic: VC_NICS, VC_NODE, VC_NIC_TIER, VC_NIC_MTU or VC_NIC_PIECE out "
			"of range\n");
		_exit(87);
	}
	vn_run_identity();
	rank = vn_env("RANK", "0");
	vn_random_state = (c->seed + 1) * 0x9e3779b97f4a7c15ull ^ vn_hash(rank);
	vn_random_state = vn_random_state ? vn_random_state : 1;
}

uint32_t vn_get(const void *p, unsigned int bit, unsigned int width)
{
	uint32_t word, mask = width == 32 ? ~0u : (1u << width) - 1;

	memcpy(&word, (const uint8_t *)p + bit / 32 * 4, 4);
	return be32toh(word) >> (32 - width - bit % 32) & mask;
}

void vn_set(void *p, unsigned int bit, unsigned int width, uint32_t value)
{
	uint32_t word, mask = width == 32 ? ~0u : (1u << width) - 1;
	unsigned int shift = 32 - width - bit % 32;

	memcpy(&word, (uint8_t *)p + bit / 32 * 4, 4);
	word = be32toh(word);
	word = (word & ~(mask << shift)) | (value & mask) << shift;
	word = htobe32(word);
	memcpy((uint8_t *)p + bit / 32 * 4, &word, 4);
}

uint64_t vn_get64(const void *p, unsigned int bit)
{
	return (uint64_t)vn_get(p, bit, 32) << 32 | vn_get(p, bit + 32, 32);
}

int vn_list_add(struct vn_list *list, void *item)
{
	if (list->n == list->cap) {
		uint32_t cap = list->cap ? 2 * list->cap : 64;
		void **grown = realloc(list->item, cap * sizeof(*grown));

		if (!grown) {
			return -1;
		}
		list->item = grown;
		list->cap = cap;
	}
	list->item[list->n] = item;
	return (int)list->n++;
}

void *vn_list_get(const struct vn_list *list, uint32_t slot)
{
	return slot < list->n ? list->item[slot] : NULL;
}

void vn_list_drop(struct vn_list *list, uint32_t slot)
{
	list->item[slot] = NULL;
}
