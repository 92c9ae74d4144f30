/* SPDX-License-Identifier: Apache-2.0 */
#include "volunteer/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>

bool address_equal(const struct address *a, const struct address *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

static void unmap(struct address *a)
{
	static const uint8_t prefix[12] = { [10] = 0xff, [11] = 0xff };
	if (a->family != 6 || memcmp(a->ip, prefix, sizeof(prefix)) != 0)
		return;
	memcpy(a->ip, a->ip + 12, 4);
	memset(a->ip + 4, 0, 12);
	a->family = 4;
}

int address_parse(const char *ip, uint16_t port, struct address *ret)
{
	struct address a = { .port = port };
	if (inet_pton(AF_INET, ip, a.ip) == 1)
		a.family = 4;
	else if (inet_pton(AF_INET6, ip, a.ip) == 1)
		a.family = 6;
	else
		return -EINVAL;
	unmap(&a);
	*ret = a;
	return 0;
}

const char *address_format(const struct address *a, char buf[ADDRESS_TEXT_MAX])
{
	if (!inet_ntop(a->family == 6 ? AF_INET6 : AF_INET, a->ip, buf, ADDRESS_TEXT_MAX))
		buf[0] = '\0';
	return buf;
}

socklen_t address_to_sockaddr(const struct address *a, struct sockaddr_storage *ret)
{
	memset(ret, 0, sizeof(*ret));
	if (a->family == 6) {
		struct sockaddr_in6 *s = (struct sockaddr_in6 *)ret;
		s->sin6_family = AF_INET6;
		s->sin6_port = htons(a->port);
		memcpy(&s->sin6_addr, a->ip, 16);
		return sizeof(*s);
	}
	struct sockaddr_in *s = (struct sockaddr_in *)ret;
	s->sin_family = AF_INET;
	s->sin_port = htons(a->port);
	memcpy(&s->sin_addr, a->ip, 4);
	return sizeof(*s);
}

int address_from_sockaddr(const struct sockaddr *sa, struct address *ret)
{
	struct address a = { 0 };
	if (sa->sa_family == AF_INET) {
		const struct sockaddr_in *s = (const struct sockaddr_in *)sa;
		a.family = 4;
		a.port = ntohs(s->sin_port);
		memcpy(a.ip, &s->sin_addr, 4);
	} else if (sa->sa_family == AF_INET6) {
		const struct sockaddr_in6 *s = (const struct sockaddr_in6 *)sa;
		a.family = 6;
		a.port = ntohs(s->sin6_port);
		memcpy(a.ip, &s->sin6_addr, 16);
		unmap(&a);
	} else {
		return -EAFNOSUPPORT;
	}
	*ret = a;
	return 0;
}

static bool wanted(const struct ifaddrs *i, bool loopback)
{
	if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) ||
	    !!(i->ifa_flags & IFF_LOOPBACK) != loopback)
		return false;
	if (i->ifa_addr->sa_family == AF_INET6)
		return !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)i->ifa_addr)->sin6_addr);
	return i->ifa_addr->sa_family == AF_INET;
}

unsigned address_local(struct address *ret, unsigned cap)
{
	struct ifaddrs *list;
	unsigned n = 0;
	if (getifaddrs(&list) < 0)
		return 0;
	for (int loopback = 0; loopback < 2; loopback++) {
		for (const struct ifaddrs *i = list; i && n < cap; i = i->ifa_next) {
			if (wanted(i, loopback) && address_from_sockaddr(i->ifa_addr, &ret[n]) == 0)
				n++;
		}
	}
	freeifaddrs(list);
	return n;
}
