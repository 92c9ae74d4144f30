/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases under clocks that drift, without a common clock. A span of D on some
 * clock lasts D-1, D or D+1 ticks. The owner counts from its ask, the grantor
 * from its answer plus a margin (M7); a sender uses a route only so long after
 * its own ask. Checked: owners never overlap, no send to an old owner later
 * than the bound after the new one began, old stable writes are refused.
 *
 * Mutants  BUG_REPLY   holders count from the reply
 *          BUG_MARGIN  the grantor adds no margin
 *          BUG_ROUTE   a route has no end
 */
#define TTL 3
#define END 12
#ifdef BUG_MARGIN
#define GRANTED TTL
#else
#define GRANTED (TTL + 2)
#endif
#define STALE (TTL + 1)

byte now = 0;
bool owning = false;           /* the old owner believes that it may deliver */
bool next = false;             /* the next epoch is granted */
bool routed = false;           /* the sender uses the old route */
byte asked, ends, freed = 0, routeAsked, routeEnds, began = 0;
byte s = 0, p = 0;

inline span(x, d) { if :: x = d - 1 :: x = d :: x = d + 1 fi }

active proctype Time() {
	do
	:: atomic { now < END -> now++;
		if :: (owning && now >= ends) -> owning = false :: else fi;
#ifndef BUG_ROUTE
		if :: (routed && now >= routeEnds) -> routed = false :: else fi
#endif
		}
	:: now == END -> break
	od
}

active proctype Owner() {
endO:
	do
	:: atomic { (s == 0 && now < 4) -> asked = now; s = 1 }
	:: atomic { (s == 1 && !next) -> s = 2; span(freed, now + GRANTED) }
	:: atomic { s == 2 -> s = 3;
#ifdef BUG_REPLY
		span(ends, now + TTL);
#else
		span(ends, asked + TTL);
#endif
		if :: now < ends -> owning = true; assert(!next) :: else fi }
	/* one renewal */
	:: atomic { (s == 3 && owning && now < 6) -> asked = now; s = 4 }
	:: atomic { (s == 4 && !next) -> s = 5; span(freed, now + GRANTED) }
	:: atomic { s == 5 -> s = 6;
#ifdef BUG_REPLY
		span(ends, now + TTL);
#else
		span(ends, asked + TTL);
#endif
		owning = (now < ends); assert(!owning || !next) }
	:: atomic { (freed > 0 && !next && now >= freed && s != 5 && s != 2) -> next = true; began = now; assert(!owning) }
	:: atomic { (freed > 0 && !next && now >= freed) -> next = true; began = now; assert(!owning) }
	:: atomic { owning -> assert(!next) }       /* delivers, or writes the stable cursor */
	od
}

active proctype Sender() {
endS:
	do
	:: atomic { (p == 0 && !next) -> routeAsked = now; p = 1 }
	:: atomic { p == 1 -> if :: !next -> p = 2 :: else -> p = 3 fi }
	:: atomic { p == 2 -> p = 0; span(routeEnds, routeAsked + TTL); if :: now < routeEnds -> routed = true :: else fi }
	:: atomic { routed -> assert(!next || now - began <= STALE) }
	od
}
