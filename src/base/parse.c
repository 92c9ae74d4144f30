/* SPDX-License-Identifier: Apache-2.0 */
#include "base/parse.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

int parse_u64(const char *text, uint64_t *ret)
{
	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	char *end;
	errno = 0;
	unsigned long long v = strtoull(text, &end, 10);
	if (*end)
		return -EINVAL;
	if (errno == ERANGE)
		return -ERANGE;
	*ret = v;
	return 0;
}

int parse_i64(const char *text, int64_t *ret)
{
	if (!isdigit((unsigned char)text[text[0] == '-']))
		return -EINVAL;
	char *end;
	errno = 0;
	long long v = strtoll(text, &end, 10);
	if (*end)
		return -EINVAL;
	if (errno == ERANGE)
		return -ERANGE;
	*ret = v;
	return 0;
}

/* A decimal number at the start of text; its end goes to ret_end. */
static int parse_decimal(const char *text, double *ret, const char **ret_end)
{
	const char *digits = text + (*text == '-');
	/* strtod also takes hex, "inf" and "nan": none of them is a number of ours. */
	if (!isdigit((unsigned char)*digits) && *digits != '.')
		return -EINVAL;
	if (digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X'))
		return -EINVAL;
	char *end;
	errno = 0;
	double v = strtod(text, &end);
	if (end == text)
		return -EINVAL;
	if (!isfinite(v))
		return -ERANGE;
	*ret = v;
	*ret_end = end;
	return 0;
}

int parse_double(const char *text, double *ret)
{
	const char *end;
	double v;
	int r = parse_decimal(text, &v, &end);
	if (r < 0)
		return r;
	if (*end)
		return -EINVAL;
	*ret = v;
	return 0;
}

struct unit {
	const char *name;
	double factor;
};

static const struct unit duration_units[] = {
	{ "", 1e9 }, { "s", 1e9 }, { "ms", 1e6 }, { "us", 1e3 }, { "ns", 1 },
	{ "m", 60e9 }, { "min", 60e9 }, { "h", 3600e9 }, { "d", 86400e9 }, { NULL, 0 },
};
static const struct unit size_units[] = {
	{ "", 1 }, { "B", 1 },
	{ "K", 1024. }, { "M", 1048576. }, { "G", 1073741824. }, { "T", 1099511627776. },
	{ "KiB", 1024. }, { "MiB", 1048576. }, { "GiB", 1073741824. }, { "TiB", 1099511627776. },
	{ "kB", 1e3 }, { "KB", 1e3 }, { "MB", 1e6 }, { "GB", 1e9 }, { "TB", 1e12 }, { NULL, 0 },
};
static const struct unit rate_units[] = {
	{ "", 1 }, { "bit", 1 }, { "kbit", 1e3 }, { "Kbit", 1e3 }, { "Mbit", 1e6 }, { "Gbit", 1e9 },
	{ "bit/s", 1 }, { "kbit/s", 1e3 }, { "Mbit/s", 1e6 }, { "Gbit/s", 1e9 }, { NULL, 0 },
};

static int parse_with_unit(const char *text, const struct unit *units, uint64_t *ret)
{
	const char *end;
	double v;
	int r = parse_decimal(text, &v, &end);
	if (r < 0)
		return r;
	while (*end == ' ')
		end++;
	for (const struct unit *u = units; u->name; u++) {
		if (strcmp(u->name, end) != 0)
			continue;
		double scaled = v * u->factor;
		/* Above 2^63 a double no longer tells neighbouring integers apart. */
		if (scaled < 0 || scaled > 9.2e18)
			return -ERANGE;
		*ret = (uint64_t)(scaled + 0.5);
		return 0;
	}
	return -EINVAL;
}

int parse_duration_ns(const char *text, uint64_t *ret_ns)
{
	return parse_with_unit(text, duration_units, ret_ns);
}

int parse_size(const char *text, uint64_t *ret_bytes)
{
	return parse_with_unit(text, size_units, ret_bytes);
}

int parse_rate_bps(const char *text, uint64_t *ret_bits_per_s)
{
	return parse_with_unit(text, rate_units, ret_bits_per_s);
}

static const char *format_scaled(double v, double step, const char *const *names, size_t count,
				 char *buf)
{
	size_t i = 0;
	while (i + 1 < count && v >= step) {
		v /= step;
		i++;
	}
	int digits = (i == 0 || v >= 100) ? 0 : (v >= 10 ? 1 : 2);
	(void)snprintf(buf, FORMAT_MAX, "%.*f %s", digits, v, names[i]);
	return buf;
}

const char *format_size(uint64_t bytes, char buf[FORMAT_MAX])
{
	static const char *const names[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	return format_scaled((double)bytes, 1024, names, ARRAY_SIZE(names), buf);
}

const char *format_rate(uint64_t bits_per_s, char buf[FORMAT_MAX])
{
	static const char *const names[] = { "bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s" };
	return format_scaled((double)bits_per_s, 1000, names, ARRAY_SIZE(names), buf);
}

const char *format_duration(uint64_t ns, char buf[FORMAT_MAX])
{
	double s = (double)ns / 1e9;
	if (s < 1e-3)
		(void)snprintf(buf, FORMAT_MAX, "%.0f us", s * 1e6);
	else if (s < 1)
		(void)snprintf(buf, FORMAT_MAX, "%.0f ms", s * 1e3);
	else if (s < 120)
		(void)snprintf(buf, FORMAT_MAX, "%.1f s", s);
	else if (s < 7200)
		(void)snprintf(buf, FORMAT_MAX, "%.0f min %02.0f s", floor(s / 60), floor(fmod(s, 60)));
	else if (s < 2 * 86400)
		(void)snprintf(buf, FORMAT_MAX, "%.0f h %02.0f min", floor(s / 3600),
			       floor(fmod(s, 3600) / 60));
	else
		(void)snprintf(buf, FORMAT_MAX, "%.1f days", s / 86400);
	return buf;
}

void hex_encode(const uint8_t *bytes, size_t len, char *hex)
{
	static const char digits[] = "0123456789abcdef";
	for (size_t i = 0; i < len; i++) {
		hex[2 * i] = digits[bytes[i] >> 4];
		hex[2 * i + 1] = digits[bytes[i] & 15];
	}
	hex[2 * len] = '\0';
}

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

int hex_decode(const char *hex, size_t hex_len, uint8_t *ret_bytes, size_t bytes_len)
{
	if (hex_len != 2 * bytes_len)
		return -EINVAL;
	for (size_t i = 0; i < hex_len; i++)
		if (hex_value(hex[i]) < 0)
			return -EINVAL;
	for (size_t i = 0; i < bytes_len; i++)
		ret_bytes[i] = (uint8_t)(hex_value(hex[2 * i]) << 4 | hex_value(hex[2 * i + 1]));
	return 0;
}
