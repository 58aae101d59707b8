/* SPDX-License-Identifier: Apache-2.0 */
/* States of groups for programs: as JSON, and as Prometheus reads it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "device/group/wait_names.h"
#include "tools/ep_info_live.h"

#define CALLS 8 /* the last ones of a rank */

/* A text that is printable ASCII, with quotes. */
static void print_text(const char *text)
{
	putchar('"');
	for (; *text; text++) {
		if (*text == '"' || *text == '\\') {
			putchar('\\');
		}
		putchar(*text);
	}
	putchar('"');
}

static double seconds(uint64_t ns)
{
	return (double)(int64_t)ns / 1e9;
}

static const char *life_name(enum ep_board_life life)
{
	return life == EP_BOARD_LIVES ? "runs" : life == EP_BOARD_STOPPED ? "stopped" : "unknown";
}

static void hostname(char name[64])
{
	name[63] = '\0';
	if (gethostname(name, 63) != 0) {
		strcpy(name, "?");
	}
	ep_log_flatten(name);
}

/* ---- JSON ---- */

static void json_waits(const struct ep_live_page *page, const char *name,
		       uint64_t (*wait)(const struct ep_live_page *page, int r))
{
	bool first = true;

	printf("\"%s\":[", name);
	for (int r = 0; r < page->board->nranks; r++) {
		const struct ep_board_rank *rank = ep_live_rank(page, r);
		uint64_t word = wait(page, r);
		uint32_t site = ep_wait_word_site(word);

		if (!word) {
			continue;
		}
		printf("%s{\"rank\":%d,\"process\":%d,\"host\":", first ? "" : ",", r, rank->pid);
		print_text(rank->host);
		fputs(",\"gpu\":", stdout);
		print_text(rank->bus_id);
		printf(",\"for\":\"%s\",\"operation\":\"%s\",\"step\":%u,\"seconds\":%.3f}",
		       ep_wait_name(site), ep_wait_operation(ep_wait_word_operation(word), site),
		       ep_wait_word_step(word), seconds(ep_wait_word_age_ns(word)));
		first = false;
	}
	putchar(']');
}

static void json_exchange(const struct ep_live_pages *pages, const struct ep_live_page *page)
{
	const struct ep_board_exchange *x = &page->board->exchange;

	printf("\"made\":%s,\"exchange\":{\"number\":%u,\"for\":",
	       page->board->made ? "true" : "false", x->begun);
	print_text(x->what);
	printf(",\"waits\":%s,\"seconds\":", ep_live_exchange(page) ? "true" : "false");
	if (x->since_ns) {
		printf("%.3f},", seconds(pages->now_ns - x->since_ns));
	} else {
		fputs("null},", stdout);
	}
}

static void json_calls(const struct ep_live_pages *pages, const struct ep_live_page *page)
{
	uint64_t last = page->board->calls, from = last > CALLS ? last - CALLS + 1 : 1;
	bool first = true;

	fputs("\"last_calls\":[", stdout);
	for (uint64_t i = from; i - from < CALLS; i++) {
		const struct ep_board_call *c = ep_live_call(page, i);

		if (!c) {
			continue;
		}
		printf("%s{\"number\":%" PRIu64 ",\"call\":\"%s\",\"seconds_ago\":%.6f,",
		       first ? "" : ",", i, ep_board_call_name(c->kind),
		       seconds(pages->now_ns - c->begin_ns));
		if (c->end_ns) {
			printf("\"seconds\":%.9f,", seconds(c->end_ns - c->begin_ns));
		} else {
			fputs("\"seconds\":null,", stdout);
		}
		printf("\"result\":%d,\"tokens\":%u}", c->result, c->tokens);
		first = false;
	}
	putchar(']');
}

static void json_page(const struct ep_live_pages *pages, const struct ep_live_page *page)
{
	const struct ep_board *b = page->board;

	printf("{\"rank\":%d,\"process\":%d,\"state\":\"%s\",\"device\":%d,\"gpu\":", b->rank,
	       b->pid, life_name(page->life), b->device);
	print_text(ep_live_rank(page, b->rank)->bus_id);
	fputs(",\"library\":", stdout);
	print_text(b->library);
	fputs(",\"failure\":", stdout);
	print_text(b->failure);
	printf(",\"device_bytes\":%" PRIu64 ",\"age_seconds\":%.3f,\"calls\":%" PRIu64 ",",
	       b->device_bytes, seconds(pages->now_ns - b->made_ns), b->calls);
	json_exchange(pages, page);
	json_calls(pages, page);
	putchar(',');
	json_waits(page, "waits", ep_live_wait);
	putchar(',');
	json_waits(page, "stale_waits", ep_live_stale);
	putchar('}');
}

static void json_cause(const struct ep_live_page *group, size_t n, const char *name,
		       uint64_t (*wait)(const struct ep_live_page *page, int r))
{
	bool first = true;

	printf("\"%s\":[", name);
	for (int r = 0; r < group->board->nranks; r++) {
		if (ep_live_holds_up(group, n, r, wait)) {
			printf("%s%d", first ? "" : ",", r);
			first = false;
		}
	}
	putchar(']');
}

static void json_group(const struct ep_live_pages *pages, size_t first, size_t n)
{
	const struct ep_board *b = pages->page[first].board;

	printf("{\"group\":\"%016" PRIx64 "\",\"groups_at_least\":%zu,\"user\":%u,\"mode\":",
	       b->team, ep_live_least(&pages->page[first], n),
	       (unsigned int)pages->page[first].user);
	print_text(b->mode);
	printf(",\"ranks\":%d,\"experts\":%u,\"tokens\":%u,\"row_bytes\":%u,\"masks\":%s,"
	       "\"timeout_seconds\":%.3f,",
	       b->nranks, b->experts, b->tokens, b->row_bytes, b->masks ? "true" : "false",
	       seconds(b->timeout_ns));
	json_cause(&pages->page[first], n, "held_up_by", ep_live_wait);
	putchar(',');
	json_cause(&pages->page[first], n, "perhaps_held_up_by", ep_live_stale);
	fputs(",\"here\":[", stdout);
	for (size_t i = first; i < first + n; i++) {
		if (i > first) {
			putchar(',');
		}
		json_page(pages, &pages->page[i]);
	}
	fputs("]}", stdout);
}

void ep_live_print_json(const struct ep_live_pages *pages)
{
	char host[64];
	size_t n;

	hostname(host);
	printf("{\"schema\":1,\"host\":");
	print_text(host);
	printf(",\"time\":%.3f,\"unreadable\":%zu,\"groups\":[", (double)pages->now_ns / 1e9,
	       pages->others);
	for (size_t i = 0; i < pages->count; i += n) {
		n = ep_live_group(pages, i);
		if (i) {
			putchar(',');
		}
		json_group(pages, i, n);
	}
	puts("]}");
}

/* ---- Prometheus ---- */

/* The page's name is there because groups may have the same number: 0, or what another user has written. */
static void metric_labels(const struct ep_live_page *page)
{
	printf("{group=\"%016" PRIx64 "\",rank=\"%d\",user=\"%u\",page=\"%s\"", page->board->team,
	       page->board->rank, (unsigned int)page->user,
	       page->path + strlen(EP_SHARED_DIR "/" EP_BOARD_NAME));
}

static void metric_info(const struct ep_live_page *page)
{
	fputs("nccl_ep_rank_info", stdout);
	metric_labels(page);
	printf(",process=\"%d\",device=\"%d\",gpu=", page->board->pid, page->board->device);
	print_text(ep_live_rank(page, page->board->rank)->bus_id);
	fputs(",mode=", stdout);
	print_text(page->board->mode);
	fputs(",library=", stdout);
	print_text(page->board->library);
	fputs("} 1\n", stdout);
}

static void metric_waits(const struct ep_live_page *page)
{
	for (int r = 0; r < page->board->nranks; r++) {
		uint64_t word = ep_live_wait(page, r);

		if (!word) {
			continue;
		}
		fputs("nccl_ep_wait_seconds", stdout);
		metric_labels(page);
		printf(",peer=\"%d\",peer_process=\"%d\",peer_host=", r,
		       ep_live_rank(page, r)->pid);
		print_text(ep_live_rank(page, r)->host);
		printf(",for=\"%s\"} %.3f\n", ep_wait_name(ep_wait_word_site(word)),
		       seconds(ep_wait_word_age_ns(word)));
	}
}

enum metric {
	METRIC_INFO,
	METRIC_CALLS,
	METRIC_AGE,
	METRIC_FAILED,
	METRIC_STOPPED,
	METRIC_EXCHANGE,
	METRIC_WAITS,
	METRICS
};

static void print_metric(const struct ep_live_pages *pages, const struct ep_live_page *page,
			 enum metric metric, const char *name)
{
	const struct ep_board *b = page->board;
	const struct ep_board_call *c = ep_live_call(page, b->calls);

	if (metric == METRIC_INFO) {
		metric_info(page);
		return;
	}
	if (metric == METRIC_WAITS) {
		metric_waits(page);
		return;
	}
	if ((metric == METRIC_AGE && !c) ||
	    (metric == METRIC_EXCHANGE && !ep_live_exchange(page))) {
		return;
	}
	fputs(name, stdout);
	metric_labels(page);
	if (metric == METRIC_CALLS) {
		printf("} %" PRIu64 "\n", b->calls);
	} else if (metric == METRIC_AGE) {
		printf("} %.3f\n", seconds(pages->now_ns - c->begin_ns));
	} else if (metric == METRIC_EXCHANGE) {
		printf("} %.3f\n", seconds(pages->now_ns - b->exchange.since_ns));
	} else {
		printf("} %d\n", metric == METRIC_FAILED ? b->failure[0] != '\0'
							 : page->life == EP_BOARD_STOPPED);
	}
}

void ep_live_print_prometheus(const struct ep_live_pages *pages)
{
	static const struct {
		const char *name, *type, *help;
	} table[METRICS] = {
		{ "nccl_ep_rank_info", "gauge", "A rank of a group on this host" },
		{ "nccl_ep_calls_total", "counter", "Calls of the rank on the group" },
		{ "nccl_ep_last_call_age_seconds", "gauge", "Since the last of them began" },
		{ "nccl_ep_failed", "gauge", "1: the group has failed for good" },
		{ "nccl_ep_stopped", "gauge", "1: the process is stopped" },
		{ "nccl_ep_exchange_seconds", "gauge",
		  "How long the rank has been waiting for all others, to make a group or make it grow" },
		{ "nccl_ep_wait_seconds", "gauge",
		  "How long the rank has been waiting for a peer" },
	};

	for (int m = 0; m < METRICS; m++) {
		printf("# HELP %s %s\n# TYPE %s %s\n", table[m].name, table[m].help, table[m].name,
		       table[m].type);
		for (size_t i = 0; i < pages->count; i++) {
			print_metric(pages, &pages->page[i], (enum metric)m, table[m].name);
		}
	}
}
