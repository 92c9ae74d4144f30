/* SPDX-License-Identifier: Apache-2.0 */
/* Whose socket is at the other end: the table's rows, and a real connection within this machine. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/http_local.h"

#define HEAD "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

static void test_rows(void **state)
{
	uint32_t lo = inet_addr("127.0.0.1");
	uint16_t client = htons(0xe850), ours = htons(0x1cf3);
	char table[1024];
	uid_t uid = 7;
	(void)snprintf(table, sizeof(table), HEAD
		       "   0: %08X:1CF3 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100\n"
		       "   1: %08X:1CF3 %08X:E850 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20\n"
		       "   2: %08X:E850 %08X:1CF3 01 00000000:00000000 00:00000000 00000000  1000        0 13 1 0 20\n"
		       "   3: %08X:E851 %08X:1CF3 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0\n"
		       "   4: %08X:E852 %08X:1CF3 04 00000000:00000000 01:00000000 00000000     0        0 0 3 0\n"
		       "   5: nonsense\n",
		       lo, lo, lo, lo, lo, lo, lo, lo, lo);
	assert_int_equal(http_local_find(table, lo, client, lo, ours, &uid), 0);
	assert_int_equal(uid, 1000);
	/* Our own end is not the peer's. */
	assert_int_equal(http_local_find(table, lo, ours, lo, client, &uid), 0);
	assert_int_equal(uid, 0);
	/* Sockets that their process has let go of look like root's, and are nobody's. */
	uid = 7;
	assert_int_equal(http_local_find(table, lo, htons(0xe851), lo, ours, &uid), -ENOTCONN);
	assert_int_equal(http_local_find(table, lo, htons(0xe852), lo, ours, &uid), -ENOTCONN);
	assert_int_equal(http_local_find(table, lo, htons(0xe853), lo, ours, &uid), -ENOTCONN);
	assert_int_equal(http_local_find("", lo, client, lo, ours, &uid), -ENOTCONN);
	assert_int_equal(uid, 7);
}

static void test_real(void **state)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	uid_t uid;
	assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &len), 0);
	assert_int_equal(connect(client, (struct sockaddr *)&a, sizeof(a)), 0);
	int served = accept(listener, NULL, NULL);
	assert_true(served >= 0);
	assert_int_equal(http_local_uid(served, &uid), 0);
	assert_int_equal(uid, getuid());
	(void)close(client);
	assert_int_equal(http_local_uid(served, &uid), -ENOTCONN);
	(void)close(served);
	(void)close(listener);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows), cmocka_unit_test(test_real) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
