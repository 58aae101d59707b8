/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the network plugin tells NCCL of RDMA devices: each line of the input is "NAME PORT GUID
 * MBPS" of an active port, whose device is below SYSFS, and each line of the output "NAME PATH PORT
 * GUID MBPS", in the plugin's order; PATH "-": none.
 *   props SYSFS
 */
#include <stdio.h>

#include "net/net.h"

#define MOST 1024

int main(int argc, char **argv)
{
	static struct ep_net_dev dev[MOST];
	unsigned long long guid;
	int n = 0;

	if (argc != 2) {
		return 2;
	}
	while (n < MOST && scanf("%63s %d %llx %u", dev[n].port.name, &dev[n].port.port, &guid,
				 &dev[n].port.mbps) == 4) {
		dev[n].guid = guid;
		ep_net_pci_path(argv[1], dev[n].port.name, dev[n].path);
		n++;
	}
	ep_net_devs_arrange(dev, n);
	for (int i = 0; i < n; i++) {
		printf("%s %s %d %llx %u\n", dev[i].label, dev[i].path[0] ? dev[i].path : "-",
		       dev[i].adapter_port, (unsigned long long)dev[i].guid, dev[i].port.mbps);
	}
	return 0;
}
