/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ep_info tells of the kernel's log. The kernel gives a record for each read; a socket that keeps
 * messages apart stands for it.
 */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/check.h"
#include "tools/ep_info.h"

static char text[65536];

static void put(int fd, const char *record)
{
	NEED(write(fd, record, strlen(record)) == (ssize_t)strlen(record));
}

/* What is printed of these records, `more` of one kind behind them. */
static void print(const char *const *records, int n, int more)
{
	FILE *out = tmpfile();
	int kept = dup(STDOUT_FILENO), fd[2], room = 1 << 20;
	char record[128];
	size_t got;

	NEED(out && kept >= 0 && fflush(stdout) == 0);
	NEED(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd) == 0);
	NEED(setsockopt(fd[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)) == 0);
	NEED(fcntl(fd[0], F_SETFL, O_NONBLOCK) == 0);
	for (int i = 0; i < n; i++) {
		put(fd[1], records[i]);
	}
	for (int i = 0; i < more; i++) {
		snprintf(record, sizeof(record), "4,%d,%d,-;mlx5_core number %d\n", i, i, i);
		put(fd[1], record);
	}
	NEED(dup2(fileno(out), STDOUT_FILENO) >= 0);
	ep_info_kernel_log(fd[0]);
	fflush(stdout);
	NEED(dup2(kept, STDOUT_FILENO) >= 0);
	rewind(out);
	got = fread(text, 1, sizeof(text) - 1, out);
	text[got] = '\0';
	fclose(out);
	close(kept);
	close(fd[0]);
	close(fd[1]);
}

int main(void)
{
	static const char *const records[] = {
		"6,1,1500000,-;mlx5_core 0000:17:00.0: Cable plugged\n SUBSYSTEM=pci\n DEVICE=+pci\n",
		"6,2,1600000,-;audit: default password of somebody\n DEVICE=mlx5_0\n",
		"3,3,2123456789,c;NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\n",
		"mlx5, mlx5, not a record of the kernel's",
		"4,4,3000000000,-;pcieport 0000:16:01.0: AER: Corrected error received\n",
	};

	print(records, 0, 0);
	CHECK_TEXT(text, "Kernel log: 0 lines about NICs, GPUs and their bus\n");
	print(records, 5, 0);
	CHECK_HAS(text, "Kernel log: 3 lines about NICs, GPUs and their bus\n"
			"  [    1.500000] mlx5_core 0000:17:00.0: Cable plugged\n"
			"  [ 2123.456789] NVRM: Xid");
	CHECK_HAS(text,
		  "\n  [ 3000.000000] pcieport 0000:16:01.0: AER: Corrected error received\n");
	CHECK(!strstr(text, "password") && !strstr(text, "SUBSYSTEM"), "%s", text);
	/* Of many lines the last ones. */
	print(records, 5, 100);
	CHECK_HAS(text,
		  "Kernel log: 103 lines about NICs, GPUs and their bus, of which the last ones\n"
		  "  [    0.000060] mlx5_core number 60\n");
	CHECK_HAS(text, "] mlx5_core number 99\n");
	return check_end();
}
