/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* When the guest last got a packet: behind the edge's own programs, at its eth0. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps"); /* [0] CLOCK_BOOTTIME of the last one, [1] how many */

SEC("tc")
int seen_in(struct __sk_buff *skb)
{
	__u32 zero = 0, one = 1;
	__u64 *last = bpf_map_lookup_elem(&seen, &zero), *count = bpf_map_lookup_elem(&seen, &one);

	(void)skb;
	if (last && count) {
		*last = bpf_ktime_get_boot_ns();
		__sync_fetch_and_add(count, 1);
	}
	return TC_ACT_UNSPEC;
}

char seen_license[] SEC("license") = "Dual BSD/GPL";
