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
	vn_log("the program ends here (seed %llu)", (unsigned long long)vn_config.seed);
	fflush(stderr);
	_exit(VN_EXIT);
}

/* What each word of VC_NIC_PROFILE sets. */
static const struct vn_word {
	const char *name;
	void *field;
	size_t bytes;
	int value;
} vn_words[] = {
#define VN_WORD(name, field, value)                                                                \
	{                                                                                          \
		name, &vn_config.field, sizeof(vn_config.field), value                             \
	}
	VN_WORD("cx7", ooo_all, false),
	VN_WORD("cx7", ooo_force, false),
	VN_WORD("cx7", nc_dedicated, false),
	VN_WORD("cx7", tier, 0),
	VN_WORD("cx8", ooo_all, true),
	VN_WORD("cx8", ooo_force, true),
	VN_WORD("cx8", nc_dedicated, true),
	VN_WORD("cx8", tier, 1),
	VN_WORD("no_gpu_umem", gpu_umem, false),
	VN_WORD("real_time", ts, 1),
	VN_WORD("old_clock", ts, 0),
	VN_WORD("small_sq", send_wr, 32),
	VN_WORD("few_reads", init_rd, 2),
	VN_WORD("no_atomics", no_atomics, true),
	VN_WORD("odd_no_atomics", odd_no_atomics, true),
	VN_WORD("odd_closed", odd_closed, true),
	VN_WORD("no_dmabuf", no_dmabuf, true),
	VN_WORD("no_wc", no_wc, true),
	VN_WORD("no_ece", no_ece, true),
	VN_WORD("own_ece", own_ece, 1),
	VN_WORD("odd_own_ece", own_ece, 2),
	VN_WORD("no_read_mr", no_read_mr, true),
	VN_WORD("one_read_mr", one_read_mr, true),
	VN_WORD("no_rtr", no_rtr, true),
	VN_WORD("quiet", quiet, true),
	VN_WORD("reports_order", reports_order, true),
	VN_WORD("scattered", scattered, true),
	VN_WORD("few_rtr", few_rtr, true),
	VN_WORD("fatal_rtr", fatal_rtr, true),
	VN_WORD("few_cqes", few_cqes, true),
	VN_WORD("late_rtr", late_rtr, true),
	VN_WORD("old_fork", old_fork, true),
	VN_WORD("bond", lag, VN_MEMBERS),
	VN_WORD("bond_late", lag, VN_MEMBERS),
	VN_WORD("bond_late", lag_late, true),
	VN_WORD("bond_hash", lag, VN_MEMBERS),
	VN_WORD("bond_hash", lag_hash, true),
	VN_WORD("ib", ib, true),
	VN_WORD("routed", ib, true),
	VN_WORD("routed", routed, true),
	VN_WORD("rails", ib, true),
	VN_WORD("rails", rails, true),
	VN_WORD("roce", ib, false),
	VN_WORD("rxe", mlx5, false),
	VN_WORD("rxe", tier, 0),
};

static void vn_profile(const char *name)
{
	bool known = false;

	for (size_t i = 0; i < VN_COUNT(vn_words); i++) {
		if (!strcmp(name, vn_words[i].name)) {
			memcpy(vn_words[i].field, &vn_words[i].value, vn_words[i].bytes);
			known = true;
		}
	}
	if (!known) {
		fprintf(stderr, "nic: VC_NIC_PROFILE: %s is none of vcrun(1)'s profiles\n", name);
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

/* Ranks of one run use the same ports. Another run has other ports, or its `run` differs. */
static void vn_run_identity(void)
{
	const char *run = vn_env("VC_DIR", vn_env("MASTER_PORT", "-"));
	uint32_t h = vn_hash(run);

	vn_config.run = h;
	vn_config.port = (uint16_t)(10000 + h % 20000);
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
	c->step = vn_env_long("VC_NIC_STEP", 0) != 0;
	c->retry_ms = (uint32_t)vn_env_long("VC_NIC_RETRY_MS", 0);
	c->piece = (uint32_t)vn_env_long("VC_NIC_PIECE", 64);
	c->gpu_dmabuf = vn_env_long("VC_NIC_DMABUF", 0) != 0;
	c->verbose = vn_env_long("VC_NIC_VERBOSE", 0) != 0;
	c->stats = vn_env_long("VC_NIC_STATS", 0) != 0;
	c->seed = (uint64_t)vn_env_long("VC_SEED", 1);
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
