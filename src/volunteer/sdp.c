/* SPDX-License-Identifier: Apache-2.0 */
/* See sdp.h. */
#include "volunteer/sdp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/parse.h"

struct line {
	const char *text;
	size_t len;
};

static bool next_line(const char **at, const char *end, struct line *ret)
{
	if (*at == end)
		return false;
	const char *nl = memchr(*at, '\n', (size_t)(end - *at));
	const char *stop = nl ? nl : end;
	ret->text = *at;
	ret->len = (size_t)(stop - *at);
	if (ret->len > 0 && ret->text[ret->len - 1] == '\r')
		ret->len--;
	*at = nl ? nl + 1 : end;
	return true;
}

/* The value after "a=name:", or NULL. */
static const char *value_of(const struct line *l, const char *name, size_t *ret_len)
{
	size_t n = strlen(name);
	if (l->len < n || memcmp(l->text, name, n) != 0)
		return NULL;
	*ret_len = l->len - n;
	return l->text + n;
}

/* ICE characters and a few more that are harmless inside our own messages. */
static bool is_token(const char *v, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (v[i] <= ' ' || v[i] >= 0x7f)
			return false;
	}
	return true;
}

static int copy_token(const char *v, size_t len, size_t min, size_t max, char *ret)
{
	if (len < min || len > max || !is_token(v, len))
		return -EINVAL;
	memcpy(ret, v, len);
	ret[len] = '\0';
	return 0;
}

static int nibble(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int parse_fingerprint(const char *v, size_t len, uint8_t ret[SDP_FINGERPRINT])
{
	static const char name[] = "sha-256 ";
	size_t n = sizeof(name) - 1;
	if (len != n + SDP_FINGERPRINT * 3 - 1 || strncasecmp(v, name, n) != 0)
		return -EINVAL;
	v += n;
	for (size_t i = 0; i < SDP_FINGERPRINT; i++, v += 3) {
		int high = nibble(v[0]), low = nibble(v[1]);
		if (high < 0 || low < 0 || (i + 1 < SDP_FINGERPRINT && v[2] != ':'))
			return -EINVAL;
		ret[i] = (uint8_t)(high << 4 | low);
	}
	return 0;
}

static int parse_number(const char *v, size_t len, uint64_t max, uint64_t *ret)
{
	char text[24];
	if (len == 0 || len >= sizeof(text))
		return -EINVAL;
	memcpy(text, v, len);
	text[len] = '\0';
	int r = parse_u64(text, ret);
	return r < 0 ? r : *ret > max ? -ERANGE : 0;
}

/* "foundation component udp priority address port typ ..." */
static bool parse_candidate(const char *v, size_t len, struct address *ret)
{
	const char *word[6];
	size_t word_len[6], words = 0;
	for (size_t i = 0; i < len && words < 6;) {
		size_t from = i;
		while (i < len && v[i] != ' ')
			i++;
		word[words] = v + from;
		word_len[words++] = i - from;
		while (i < len && v[i] == ' ')
			i++;
	}
	char ip[ADDRESS_TEXT_MAX];
	uint64_t port;
	if (words < 6 || word_len[1] != 1 || word[1][0] != '1' || word_len[2] != 3 ||
	    strncasecmp(word[2], "udp", 3) != 0 || word_len[4] >= sizeof(ip) ||
	    parse_number(word[5], word_len[5], UINT16_MAX, &port) < 0 || port == 0)
		return false;
	memcpy(ip, word[4], word_len[4]);
	ip[word_len[4]] = '\0';
	return address_parse(ip, (uint16_t)port, ret) == 0;
}

static int parse_setup(const char *v, size_t len, enum sdp_setup *ret)
{
	static const char *const names[] = { "actpass", "active", "passive" };
	for (unsigned i = 0; i < 3; i++) {
		if (len == strlen(names[i]) && memcmp(v, names[i], len) == 0) {
			*ret = (enum sdp_setup)i;
			return 0;
		}
	}
	return -EINVAL;
}

enum { HAVE_UFRAG = 1, HAVE_PWD = 2, HAVE_FINGERPRINT = 4, HAVE_MEDIA = 8, HAVE_ALL = 15 };

static int parse_attribute(const struct line *l, struct sdp *s, unsigned *have)
{
	const char *v;
	size_t len;
	uint64_t number;
	if ((v = value_of(l, "a=ice-ufrag:", &len))) {
		*have |= HAVE_UFRAG;
		return copy_token(v, len, 4, SDP_UFRAG_MAX, s->ufrag);
	}
	if ((v = value_of(l, "a=ice-pwd:", &len))) {
		*have |= HAVE_PWD;
		return copy_token(v, len, 22, SDP_PWD_MAX, s->pwd);
	}
	if ((v = value_of(l, "a=fingerprint:", &len))) {
		*have |= HAVE_FINGERPRINT;
		return parse_fingerprint(v, len, s->fingerprint);
	}
	if ((v = value_of(l, "a=mid:", &len)))
		return copy_token(v, len, 1, SDP_MID_MAX, s->mid);
	if ((v = value_of(l, "a=setup:", &len)))
		return parse_setup(v, len, &s->setup);
	if ((v = value_of(l, "a=sctp-port:", &len))) {
		int r = parse_number(v, len, UINT16_MAX, &number);
		if (r == 0)
			s->sctp_port = (uint16_t)number;
		return r;
	}
	if ((v = value_of(l, "a=max-message-size:", &len))) {
		int r = parse_number(v, len, UINT32_MAX, &number);
		if (r == 0)
			s->message_max = (uint32_t)number;
		return r;
	}
	if ((v = value_of(l, "a=candidate:", &len))) {
		if (s->candidates_count < SDP_CANDIDATES_MAX &&
		    parse_candidate(v, len, &s->candidates[s->candidates_count]))
			s->candidates_count++;
		else
			s->skipped++;
		return 0;
	}
	if (l->len == 10 && memcmp(l->text, "a=ice-lite", 10) == 0)
		s->ice_lite = true;
	return 0;
}

int sdp_parse(const char *text, size_t len, struct sdp *ret, struct diag *diag)
{
	if (len > SDP_MAX)
		return diag_set(diag, -EMSGSIZE, "sdp", "%zu bytes, more than %u", len, SDP_MAX);
	struct sdp s = { .mid = "0", .sctp_port = 5000, .message_max = 65536 };
	const char *at = text, *end = text + len;
	struct line l;
	unsigned have = 0, number = 0, media = 0;
	while (next_line(&at, end, &l)) {
		char where[32];
		(void)snprintf(where, sizeof(where), "sdp line %u", ++number);
		if (l.len >= 2 && memcmp(l.text, "m=", 2) == 0) {
			size_t n;
			if (media++ > 0 || !value_of(&l, "m=application ", &n))
				return diag_set(diag, -EINVAL, where, "not one data channel alone");
			have |= HAVE_MEDIA;
		}
		if (parse_attribute(&l, &s, &have) < 0)
			return diag_set(diag, -EINVAL, where, "%.*s: not understood",
					(int)(l.len < 60 ? l.len : 60), l.text);
	}
	if (have != HAVE_ALL)
		return diag_set(diag, -EINVAL, "sdp", "no %s",
				!(have & HAVE_MEDIA) ? "data channel" :
				!(have & HAVE_UFRAG) ? "ice-ufrag" :
				!(have & HAVE_PWD) ? "ice-pwd" : "sha-256 fingerprint");
	*ret = s;
	return 0;
}

static const char *setup_name(enum sdp_setup setup)
{
	return setup == SDP_ACTIVE ? "active" : setup == SDP_PASSIVE ? "passive" : "actpass";
}

int sdp_format(const struct sdp *s, struct strbuf *out)
{
	char ip[ADDRESS_TEXT_MAX];
	bool any = s->candidates_count > 0;
	strbuf_printf(out,
		"v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\n%sa=group:BUNDLE %s\r\n"
		"m=application %u UDP/DTLS/SCTP webrtc-datachannel\r\nc=IN IP%u %s\r\n"
		"a=mid:%s\r\na=ice-ufrag:%s\r\na=ice-pwd:%s\r\na=fingerprint:sha-256 ",
		s->ice_lite ? "a=ice-lite\r\n" : "", s->mid,
		any ? s->candidates[0].port : 9, any ? s->candidates[0].family : 4,
		any ? address_format(&s->candidates[0], ip) : "0.0.0.0", s->mid, s->ufrag, s->pwd);
	for (size_t i = 0; i < SDP_FINGERPRINT; i++)
		strbuf_printf(out, "%02X%s", s->fingerprint[i], i + 1 < SDP_FINGERPRINT ? ":" : "\r\n");
	strbuf_printf(out, "a=setup:%s\r\na=sctp-port:%u\r\na=max-message-size:%u\r\n",
		      setup_name(s->setup), s->sctp_port, s->message_max);
	for (size_t i = 0; i < s->candidates_count; i++) {
		/* Earlier ones first: type preference 126 (host), local preference by order. */
		uint32_t priority = 126u << 24 | (65535u - (uint32_t)i) << 8 | 255u;
		strbuf_printf(out, "a=candidate:%zu 1 udp %u %s %u typ host\r\n", i + 1, priority,
			      address_format(&s->candidates[i], ip), s->candidates[i].port);
	}
	strbuf_add(out, "a=end-of-candidates\r\n");
	return out->failed ? -ENOMEM : 0;
}
