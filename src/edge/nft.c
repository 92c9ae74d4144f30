/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One nf_tables table of ours: guests leave under the uplink's address, only
 * they are forwarded (a lent machine must not become a router), and they find
 * no service on the machine. Set in one transaction, so there is no moment
 * with half of the rules.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <nftables/libnftables.h>
#include <string.h>

#include "base/strbuf.h"
#include "edge/edge_internal.h"
#include "edge/tunnel.h"

#define TABLE "inet reclaim_edge"

DEFINE_CLEANUP(struct nft_ctx *, nft_ctx_free)

static int run(const char *commands, struct diag *diag)
{
	CLEANUP(nft_ctx_free_cleanup) struct nft_ctx *nft = nft_ctx_new(NFT_CTX_DEFAULT);
	const char *said;
	int n;

	if (!nft || nft_ctx_buffer_error(nft) != 0 || nft_ctx_buffer_output(nft) != 0)
		return diag_set(diag, -ENOMEM, "nftables", "out of memory");
	if (nft_run_cmd_from_buffer(nft, commands) == 0)
		return 0;
	said = nft_ctx_get_error_buffer(nft);
	n = said ? (int)strcspn(said, "\n") : 0;
	return diag_set(diag, -EOPNOTSUPP, "nftables", "%.*s", n, n ? said : "");
}

int nft_set(const char *uplink, const struct edge_prefix *guest_net, bool masquerade,
	    bool only_guests_forward, struct diag *diag)
{
	CLEANUP_STRBUF struct strbuf b = STRBUF_INIT;
	char net[INET_ADDRSTRLEN];

	(void)inet_ntop(AF_INET, &guest_net->addr, net, sizeof(net)); /* the buffer is large enough */
	/* Creating before deleting makes the deletion good in both cases. */
	(void)strbuf_printf(&b, "table " TABLE "\ndelete table " TABLE "\ntable " TABLE " {\n");
	if (masquerade)
		(void)strbuf_printf(&b,
				    "chain post { type nat hook postrouting priority 100;\n"
				    "oifname \"%s\" ip saddr %s/%u masquerade\n}\n",
				    uplink, net, guest_net->len);
	/* Tunnels of two ranks meet by both sending (edge/tunnel.h). A packet that comes before ours
	 * went out must leave no trace here: ours would then be given another port. */
	if (masquerade)
		(void)strbuf_printf(&b,
				    "chain pre { type filter hook prerouting priority -140;\n"
				    "iifname \"%s\" udp dport %d-%d ct state new drop\n}\n",
				    uplink, TUNNEL_PORT_MIN, TUNNEL_PORT_MIN + TUNNEL_PORTS - 1);
	(void)strbuf_printf(&b,
			    "chain forward { type filter hook forward priority -5;\n"
			    "iifname \"rg*\" oifname != \"%s\" drop\n",
			    uplink);
	if (masquerade)
		(void)strbuf_printf(&b,
				    "iifname \"%s\" ip daddr %s/%u ct state established,related accept\n"
				    "iifname \"%s\" ip daddr %s/%u drop\n",
				    uplink, net, guest_net->len, uplink, net, guest_net->len);
	if (only_guests_forward)
		(void)strbuf_printf(&b, "iifname \"%s\" ip daddr != %s/%u drop\n", uplink, net,
				    guest_net->len);
	(void)strbuf_printf(&b, "}\nchain input { type filter hook input priority -5;\n"
				"iifname \"rg*\" drop\n}\n}\n");
	if (b.failed)
		return diag_set(diag, -ENOMEM, "nftables", "out of memory");
	return run(b.data, diag);
}

int nft_remove(void)
{
	return run("table " TABLE "\ndelete table " TABLE "\n", NULL);
}

int nft_probe(struct diag *diag)
{
	/* Made and gone in one transaction. */
	return run("table inet reclaim_probe {\n"
		   "chain post { type nat hook postrouting priority 100;\n"
		   "oifname \"rgnone\" ip saddr 192.0.2.0/24 masquerade\n}\n"
		   "chain forward { type filter hook forward priority -5;\n"
		   "iifname \"rgnone\" ct state established,related accept\n}\n"
		   "chain pre { type filter hook prerouting priority -140;\n"
		   "iifname \"rgnone\" udp dport 24000-25023 ct state new drop\n}\n}\n"
		   "delete table inet reclaim_probe\n",
		   diag);
}

int nft_exists(void)
{
	return run("list table " TABLE "\n", NULL) == 0;
}
