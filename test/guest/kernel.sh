#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the guest's kernel in DIR (vmlinuz and initrd) from Debian's package, 70 MB to fetch, unless it
# is there and made by the same scripts. The kernel is for the guest alone: nothing is installed.
#   kernel.sh DIR

set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(realpath -m "$1")
modules="virtio_pci virtio_net 9pnet_virtio 9p overlay veth bridge sch_netem crc32_generic ib_uverbs rdma_rxe"

if cat "$here/kernel.sh" "$here/init" | cmp -s - "$dir/made-by"; then
	exit 0
fi
package=$(apt-cache depends linux-image-amd64 2>/dev/null |
	awk '/Depends: linux-image-/ { print $2; exit }')
if [ -z "$package" ]; then
	echo "no package linux-image-amd64 (the guest needs Debian's kernel)" >&2
	exit 1
fi
mkdir -p "$dir"
work=$(mktemp -d "$dir/XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -q "$package" >/dev/null
dpkg-deb -x ./*.deb .
version=${package#linux-image-}

# The modules with all that they depend on, and who depends on whom.
mkdir -p "initrd/lib/modules/$version"
busybox depmod -n -b . "$version" 2>/dev/null | grep '^kernel/.*:' >all.dep
awk -v names="$modules" '
	BEGIN { n = split(names, list, " ") }
	{
		name = $1
		gsub(/.*\/|\.ko.*/, "", name)
		gsub(/-/, "_", name)
		line[name] = $0
	}
	END {
		for (i = 1; i <= n; i++) {
			print line[list[i]]
		}
	}' all.dep >wanted.dep
tr -d : <wanted.dep | tr ' ' '\n' | sort -u | grep . >files
grep -F -f <(sed 's/$/:/' files) all.dep >"initrd/lib/modules/$version/modules.dep"
(cd "lib/modules/$version" && xargs cp --parents -t "$work/initrd/lib/modules/$version") <files
echo "$modules" >initrd/modules
cp /bin/busybox "$here/init" initrd/
chmod +x initrd/init
(cd initrd && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$work/packed"
mv "boot/vmlinuz-$version" "$dir/vmlinuz"
mv packed "$dir/initrd"
cat "$here/kernel.sh" "$here/init" >"$dir/made-by"
