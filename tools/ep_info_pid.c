/* SPDX-License-Identifier: Apache-2.0 */
/* Which libraries of NCCL and of expert parallelism a running process has mapped, by its maps and their files. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/build.h"
#include "core/log.h"
#include "tools/ep_info.h"

#define LIBRARIES 64 /* of a process; more are not listed */

struct mapped {
	char range[64]; /* as in the maps, which names the file in map_files */
	char path[PATH_MAX];
	bool deleted;
};

/* Texts before a version number in a file. The first that is found shows whose it is. */
static const struct {
	const char *mark, *note;
} marks[] = {
	{ EP_BUILD_NAME, "" },
	{ "NCCL EP version ", "; not Switchyard" },
	{ "NCCL version ", "" },
};

static bool is_ours_to_list(const char *path)
{
	static const char *const names[] = { "libnccl.so", "libnccl_ep.so", "libnccl-net",
					     "libnccl_ep_topo.so" };
	const char *base = strrchr(path, '/');

	for (size_t i = 0; base && i < sizeof(names) / sizeof(names[0]); i++) {
		if (strncmp(base + 1, names[i], strlen(names[i])) == 0) {
			return true;
		}
	}
	return false;
}

/* A line of the maps: range, permissions, offset, device, inode, path. */
static bool parse_line(char *line, struct mapped *mapped)
{
	static const char gone[] = " (deleted)";
	char *path = strchr(line, '/');
	size_t n;

	line[strcspn(line, "\n")] = '\0';
	if (!path || sscanf(line, "%63s", mapped->range) != 1) {
		return false;
	}
	n = strlen(path);
	mapped->deleted = n > sizeof(gone) - 1 && strcmp(path + n - (sizeof(gone) - 1), gone) == 0;
	if (mapped->deleted) {
		path[n - (sizeof(gone) - 1)] = '\0';
	}
	snprintf(mapped->path, sizeof(mapped->path), "%s", path);
	return is_ours_to_list(mapped->path);
}

/* Each file once. Returns how many. */
static int read_maps(FILE *maps, struct mapped *list)
{
	char *line = NULL;
	size_t size = 0;
	int n = 0;

	while (n < LIBRARIES && getline(&line, &size, maps) > 0) {
		bool known = !parse_line(line, &list[n]);

		for (int i = 0; i < n && !known; i++) {
			known = strcmp(list[i].path, list[n].path) == 0 &&
				list[i].deleted == list[n].deleted;
		}
		n += !known;
	}
	free(line);
	return n;
}

/*
 * The very file that is mapped, which root may open even if another has taken its name; else, by its path as the process
 * sees it: it may have another root.
 */
static int open_mapped(const char *pid, const struct mapped *mapped)
{
	char path[PATH_MAX + 128];
	int fd;

	snprintf(path, sizeof(path), "/proc/%s/map_files/%s", pid, mapped->range);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 || mapped->deleted) {
		return fd;
	}
	snprintf(path, sizeof(path), "/proc/%s/root%s", pid, mapped->path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd >= 0 ? fd : open(mapped->path, O_RDONLY | O_CLOEXEC);
}

/* The text that begins with the mark and a digit, up to what is not printable; NULL: it is not there. */
static const char *find_text(const char *data, size_t size, const char *mark, char text[256])
{
	size_t n = strlen(mark), i = 0;

	for (const char *at = data; (at = memmem(at, size - (size_t)(at - data), mark, n)); at++) {
		size_t left = size - (size_t)(at - data);

		if (left <= n || at[n] < '0' || at[n] > '9') {
			continue;
		}
		for (i = 0; i < left && i < 255 && at[i] >= ' ' && at[i] <= '~'; i++) {
			text[i] = at[i];
		}
		text[i] = '\0';
		return text;
	}
	return NULL;
}

static void print_name(int fd)
{
	struct stat st;
	char text[256];
	const char *found = NULL;
	char *data = MAP_FAILED;

	if (fstat(fd, &st) == 0 && st.st_size > 0) {
		data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	}
	if (data == MAP_FAILED) {
		printf("      its file cannot be read: %s\n", strerror(errno));
		return;
	}
	for (size_t i = 0; !found && i < sizeof(marks) / sizeof(marks[0]); i++) {
		found = find_text(data, (size_t)st.st_size, marks[i].mark, text);
		if (found) {
			printf("      %s%s\n", found, marks[i].note);
		}
	}
	if (!found) {
		puts("      neither Switchyard nor NCCL, by the texts in its file");
	}
	munmap(data, (size_t)st.st_size);
}

/* Its path may hold anything, and is flattened. */
static void print_mapped(const char *pid, struct mapped *mapped)
{
	int fd = open_mapped(pid, mapped);

	ep_log_flatten(mapped->path);
	printf("  %s%s\n", mapped->path,
	       mapped->deleted ? ", which was deleted or replaced since it was loaded" : "");
	if (fd < 0) {
		printf("      its file cannot be read: %s\n", strerror(errno));
		return;
	}
	print_name(fd);
	close(fd);
}

static void print_process(const char *pid)
{
	char path[64], name[64] = "?";
	FILE *comm;

	snprintf(path, sizeof(path), "/proc/%s/comm", pid);
	comm = fopen(path, "re");
	if (comm && fgets(name, sizeof(name), comm)) {
		name[strcspn(name, "\n")] = '\0';
		ep_log_flatten(name);
	}
	if (comm) {
		fclose(comm);
	}
	printf("Process %s (%s)\n", pid, name);
}

int ep_info_pid(const char *pid)
{
	static struct mapped list[LIBRARIES];
	char path[64];
	FILE *maps;
	int n;

	if (!*pid || strlen(pid) > 10 || pid[strspn(pid, "0123456789")]) {
		fprintf(stderr, "ep_info: --pid: got '%.40s', allowed is the number of a process\n",
			pid);
		return 2;
	}
	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	maps = fopen(path, "re");
	if (!maps) {
		fprintf(stderr, "ep_info: %s: %s\n", path, strerror(errno));
		return 1;
	}
	n = read_maps(maps, list);
	if (ferror(maps)) {
		fprintf(stderr, "ep_info: %s: %s\n", path, strerror(errno));
		fclose(maps);
		return 1;
	}
	fclose(maps);
	print_process(pid);
	for (int i = 0; i < n; i++) {
		print_mapped(pid, &list[i]);
	}
	if (!n) {
		puts("  no NCCL, and no library for expert parallelism");
	}
	return fflush(stdout) || ferror(stdout) ? 1 : 0;
}
