/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A producer is lost and starts again from a checkpoint, while the old one may
 * live on behind a slow link: the higher producer epoch fences the lower, the
 * receiver's cursor drops what comes again, and what is regenerated is what
 * was sent, or is held until it is durable.
 *
 * Variant   HOLD        output waits until the producer's state is durable (needed when it is not deterministic)
 * Mutants   BUG_FENCE   the older producer is still heard
 *           BUG_CURSOR  the new producer starts at its own next, not at the receiver's
 *           BUG_HOLD    (with HOLD) undurable output of a non-deterministic producer is sent
 */
#define N 3
chan link1 = [2] of { byte, byte };   /* seq, text */
chan link2 = [2] of { byte, byte };
chan hello1 = [1] of { byte };        /* next */
chan hello2 = [1] of { byte };
byte cur = 0, fence = 0;              /* receiver */
byte text[4];                         /* what was delivered, by seq */
byte made1 = 0, durable = 0;
byte durableText[4];
bool restarted = false;

#ifdef HOLD
#define TEXT(pe, q) pe                /* each incarnation says something else */
#else
#define TEXT(pe, q) q
#endif

proctype Old() {
	byte next = 1;
	hello1?next;
end1:
	do
	:: atomic { made1 < N -> made1++ }
	:: atomic { (durable < made1 && !restarted) -> durable++; durableText[durable] = TEXT(1, durable) }
	:: atomic { (next <= made1 && nfull(link1)
#if defined(HOLD) && !defined(BUG_HOLD)
		&& next <= durable
#endif
		) -> link1!next,TEXT(1, next); next++ }
	:: made1 == N && next > N -> break
	od
}

proctype New() {
	byte next, made;
	atomic { !restarted -> restarted = true; made = durable }
	hello2?next;
#ifdef BUG_CURSOR
	next = made + 1;
#endif
end2:
	do
	:: atomic { made < N -> made++; if :: made > durable -> durable = made; durableText[made] = TEXT(2, made) :: else fi }
	:: atomic { (next <= made && nfull(link2)) -> link2!next,durableText[next]; next++ }
	:: made == N && next > N -> break
	od
}

proctype Receiver() {
	byte q, t; bool greeted = false;
	hello1!1;
endR:
	do
	:: atomic { (restarted && !greeted) -> greeted = true; fence = 2; hello2!cur + 1 }
	:: atomic { link1?q,t;
#ifndef BUG_FENCE
		if :: fence == 2 -> goto skip1 :: else fi;
#endif
		assert(fence != 2);           /* a fenced producer is never heard */
		if :: q == cur + 1 -> cur = q; text[q] = t :: q <= cur -> skip :: else -> assert(false) fi;
skip1:		q = 0; t = 0 }
	:: atomic { link2?q,t;
		if :: q == cur + 1 -> cur = q; text[q] = t :: q <= cur -> assert(text[q] == t) :: else -> assert(false) fi; q = 0; t = 0 }
	od
}

/* In the end all is delivered, and it is what the surviving producer holds. */
active proctype Watch() {
	byte i = 1;
	timeout ->
	if
	:: restarted -> assert(cur == N);
		do :: i <= N -> assert(text[i] == durableText[i]); i++ :: else -> break od
	:: else
	fi
}

init { atomic { run Old(); run New(); run Receiver() } }
