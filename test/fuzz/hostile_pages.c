/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared files of any bytes, as other users may leave them: pages of groups, which change between
 * two looks, and counters of the network plugin. ep_info must end, print lines of printable
 * characters, JSON that can be parsed, and for Prometheus each series once.
 *
 *     hostile_pages FIRST COUNT     cases FIRST .. FIRST+COUNT-1
 */
#include <ctype.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/board.h"
#include "device/group/wait_word.h"
#include "net/counts_file.h"
#include "support/check.h"
#include "support/look.h"
#include "tools/ep_info.h"

#define FILES 12
#define COUNTS 3 /* of these files */

static uint64_t state;
static struct ep_shared_file files[FILES];

static uint64_t draw(uint64_t below)
{
	uint64_t z = state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	z ^= z >> 31;
	return below ? z % below : z;
}

/* Bytes, words of extreme numbers, and texts without an end. */
static void damage(unsigned char *data, size_t bytes)
{
	static const uint64_t extremes[] = { 0,         1,          INT32_MAX,     UINT32_MAX,
					     INT64_MAX, UINT64_MAX, UINT64_MAX - 1 };
	uint64_t value;

	for (uint64_t n = draw(40); n; n--) {
		/* half of them in the head */
		size_t most = draw(2) || bytes < 640 ? bytes : 640, size = 4u << draw(2),
		       at = draw(most) & ~(size - 1);

		value = draw(2) ? draw(0) : extremes[draw(sizeof(extremes) / sizeof(*extremes))];
		if (draw(4) == 0) {
			memset(data + at, (int)draw(256), draw(bytes - at));
		} else if (at + size <= bytes) {
			memcpy(data + at, &value, size);
		}
	}
}

/* Some ranks' waits and calls, and numbers that other pages have, too. */
static void draw_board(struct ep_board *b)
{
	uint64_t *words = (void *)((char *)b + b->waits_off);

	b->team = draw(3);
	b->rank = (int32_t)draw((uint64_t)b->nranks);
	b->made = draw(3) != 0;
	b->shows_waits = 1;
	b->timeout_ns = draw(2) ? draw(0) : UINT64_C(100000000000);
	b->exchange.begun = (uint32_t)draw(3);
	b->exchange.ended = (uint32_t)draw(3);
	b->calls = b->seen_calls = draw(2) ? draw(100) : draw(0);
	b->seen_ns = draw(2) ? ep_board_now() : draw(0);
	for (uint64_t n = draw(20); n; n--) {
		words[draw((uint64_t)b->nranks)] = draw(2) ? draw(0)
							   : ep_wait_word(7, 1, 5, 1u << 30);
	}
	for (uint64_t i = b->calls - draw(12); i != b->calls; i++) {
		b->call[i % EP_BOARD_CALLS].number = i + 1;
		b->call[i % EP_BOARD_CALLS].kind = (uint32_t)draw(16);
	}
}

/* A damaged board in place of what is there; most are sound, so that their content is read. */
static void write_board(const struct ep_shared_file *file, int32_t nranks)
{
	struct ep_shared_file unused;
	struct ep_board *b = ep_board_make(nranks, &unused), *copy;
	size_t bytes = ep_board_bytes(nranks);
	ssize_t written = (ssize_t)bytes - (draw(16) ? 0 : (ssize_t)draw(bytes));

	NEED(b);
	ep_shared_file_remove(&unused);
	draw_board(b);
	ep_board_show(b);
	copy = malloc(bytes);
	NEED(copy);
	memcpy(copy, b, bytes);
	damage((unsigned char *)copy, bytes);
	if (draw(8)) {
		copy->magic = b->magic;
		copy->version = b->version;
		copy->bytes = b->bytes;
		copy->nranks = b->nranks;
		copy->rank = b->rank;
		copy->waits_off = b->waits_off;
		copy->ranks_off = b->ranks_off;
		copy->started = b->started;
		copy->pid_space = draw(4) ? b->pid_space : draw(0);
		copy->pid = b->pid;
		copy->made_ns = (uint64_t)nranks; /* the same at the second look */
	}
	NEED(pwrite(file->fd, copy, bytes, 0) == (ssize_t)bytes && !ftruncate(file->fd, written));
	free(copy);
	NEED(munmap(b, bytes) == 0);
}

static void write_counts(const struct ep_shared_file *file)
{
	const size_t entries = draw(70), bytes = sizeof(struct ep_net_counts_file) +
						 entries * sizeof(struct ep_net_counts);
	struct ep_net_counts_file *head = calloc(1, bytes);

	NEED(head);
	for (size_t i = 0; i < entries; i++) {
		head->entry[i].state = (uint32_t)draw(3);
	}
	damage((unsigned char *)head, bytes);
	if (draw(8)) {
		head->magic = EP_NET_COUNTS_MAGIC;
		head->version = EP_NET_COUNTS_VERSION;
		head->entries = EP_NET_COUNTS_ENTRIES;
		head->entry_bytes = sizeof(struct ep_net_counts);
	}
	NEED(pwrite(file->fd, head, bytes, 0) == (ssize_t)bytes &&
	     !ftruncate(file->fd, (off_t)(bytes - (draw(8) ? 0 : draw(bytes)))));
	free(head);
}

static void write_boards(void)
{
	static const int32_t sizes[] = { 1, 2, 3, 8, 8, 8, 64, 1024 };

	for (int i = COUNTS; i < FILES; i++) {
		write_board(&files[i], sizes[(size_t)i % (sizeof(sizes) / sizeof(*sizes))]);
	}
}

/* ---- JSON ---- */

static const char *parse(const char *c);

static const char *parse_text(const char *c)
{
	NEED(*c == '"');
	for (c++; *c != '"'; c++) {
		NEED(*c);
		if (*c == '\\') {
			c++;
			NEED(*c == '"' || *c == '\\');
		}
	}
	return c + 1;
}

/* Returns the end of a list, or of an object, whose items have names. */
static const char *parse_list(const char *c, char end)
{
	if (*++c == end) {
		return c + 1;
	}
	for (;; c++) {
		if (end == '}') {
			c = parse_text(c + strspn(c, " "));
			NEED(*c == ':');
			c++;
		}
		c = parse(c);
		if (*c == end) {
			return c + 1;
		}
		NEED(*c == ',');
	}
}

/* Returns the end of a value. */
static const char *parse(const char *c)
{
	static const char *const words[] = { "null", "true", "false" };
	char *end;

	c += strspn(c, " ");
	if (*c == '"') {
		return parse_text(c);
	}
	if (*c == '[' || *c == '{') {
		return parse_list(c, *c == '[' ? ']' : '}');
	}
	for (size_t i = 0; i < 3; i++) {
		if (strncmp(c, words[i], strlen(words[i])) == 0) {
			return c + strlen(words[i]);
		}
	}
	NEED(isdigit((unsigned char)*c) || (*c == '-' && isdigit((unsigned char)c[1])));
	(void)strtod(c, &end);
	return end;
}

/* ---- Cases ---- */

static void print_live(void *format)
{
	CHECK_INT(ep_info_live(*(enum ep_live_format *)format), 0);
}

static void print_net(void *unused)
{
	(void)unused;
	ep_info_net();
}

static void run(uint64_t number)
{
	char *text;

	state = number;
	for (int i = 0; i < COUNTS; i++) {
		write_counts(&files[i]);
	}
	look_check_plain(look_at(print_net, NULL));
	for (int i = EP_LIVE_TABLE; i <= EP_LIVE_PROMETHEUS; i++) {
		enum ep_live_format format = (enum ep_live_format)i;

		write_boards();
		text = look_at(print_live, &format);
		look_check_plain(text);
		if (format == EP_LIVE_JSON) {
			CHECK_TEXT(parse(text), "\n");
		} else if (format == EP_LIVE_PROMETHEUS) {
			look_check_series(text);
		}
	}
}

int main(int argc, char **argv)
{
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	uint64_t cases = argc > 2 ? strtoull(argv[2], NULL, 10) : 40;

	for (int i = 0; i < FILES; i++) {
		const char *prefix = i < COUNTS ? EP_NET_COUNTS_NAME : EP_BOARD_NAME;

		NEED(ep_shared_file_make(&files[i], prefix, 1) == 0);
	}
	look_between = write_boards;
	for (uint64_t i = first; i < first + cases; i++) {
		fprintf(stderr, "case %llu\n", (unsigned long long)i);
		run(i);
	}
	for (int i = 0; i < FILES; i++) {
		ep_shared_file_remove(&files[i]);
	}
	return check_end();
}
