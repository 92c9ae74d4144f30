/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credit of two classes into one buffer: absolute offsets, a floor for each,
 * granted anew in each epoch (M6). Credit frames may be lost, repeated, late.
 * The endpoint moves once.
 *
 * Variant   STUCK       the application never takes bulk
 * Mutants   BUG_INCR    credits are increments
 *           BUG_POOL    one pool, no floors
 *           BUG_CARRY   the old epoch's limits live on
 */
#define TOKEN 0
#define BULK 1
#define ROOM0 1
#define ROOM1 2
#define ROOM (ROOM0 + ROOM1)
#define TOTAL 5

chan credit = [2] of { byte, byte, byte };   /* epoch, class, limit */
chan data0 = [ROOM] of { byte };             /* epoch of a token in flight */
chan data1 = [ROOM] of { byte };
byte epoch = 1, route = 1;                   /* the owner's, the sender's */
byte offset[2], limit[2];                    /* sender, this epoch */
byte taken[2], queued[2], before[2];         /* owner: taken this epoch, waiting, taken in earlier epochs */
byte arrived[2];
bool moved = false;

#ifdef BUG_POOL
#define GRANT(c) (taken[0] + taken[1] + ROOM - offset[1 - c])
#else
#define GRANT(c) (taken[c] + (c == TOKEN -> ROOM0 : ROOM1))
#endif

active proctype Sender() {
	byte e, c, v;
endSend:
	do
	:: atomic { (before[0] + offset[0] < TOTAL && offset[0] < limit[0] && nfull(data0)) -> data0!route; offset[0]++ }
	:: atomic { (before[1] + offset[1] < TOTAL && offset[1] < limit[1] && nfull(data1)) -> data1!route; offset[1]++ }
	:: atomic { credit?e,c,v;
		if
		:: e > route -> /* new owner: resend from its cut, count from zero */
			route = e; offset[0] = 0; offset[1] = 0;
			before[0] = before[0] + arrived[0]; before[1] = before[1] + arrived[1];
			arrived[0] = 0; arrived[1] = 0;
#ifndef BUG_CARRY
			limit[0] = 0; limit[1] = 0;
#endif
			limit[c] = v
		:: e == route ->
#ifdef BUG_INCR
			limit[c] = limit[c] + v
#else
			if :: v > limit[c] -> limit[c] = v :: else fi
#endif
		:: else
		fi; e = 0; c = 0; v = 0 }
	od
}

active proctype Owner() {
	byte e; byte faults = 0; byte sent[2];
endOwn:
	do
	:: atomic { data0?e; if :: e == epoch -> queued[0]++; arrived[0]++; assert(queued[0] + queued[1] <= ROOM); assert(queued[0] <= ROOM0) :: else fi; e = 0 }
	:: atomic { data1?e; if :: e == epoch -> queued[1]++; arrived[1]++; assert(queued[0] + queued[1] <= ROOM); assert(queued[1] <= ROOM1) :: else fi; e = 0 }
	:: atomic { queued[0] > 0 -> queued[0]--; taken[0]++ }
#ifndef STUCK
	:: atomic { queued[1] > 0 -> queued[1]--; taken[1]++ }
#endif
#ifdef BUG_INCR
	:: atomic { (nfull(credit) && sent[0] < taken[0] + ROOM0) -> credit!epoch,0,1; sent[0]++ }
	:: atomic { (nfull(credit) && sent[1] < taken[1] + ROOM1) -> credit!epoch,1,1; sent[1]++ }
	:: atomic { (nfull(credit) && faults < 2) -> faults++; credit!epoch,1,1 }
#else
	:: atomic { (nfull(credit) && (GRANT(0) > limit[0] || route != epoch)) -> credit!epoch,0,GRANT(0) }
	:: atomic { (nfull(credit) && (GRANT(1) > limit[1] || route != epoch)) -> credit!epoch,1,GRANT(1) }
	:: atomic { (nfull(credit) && faults < 2) -> faults++; credit!epoch,1,GRANT(1) }
#endif
	:: atomic { (nempty(credit) && faults < 2) -> faults++; credit?_,_,_ }
	:: atomic { !moved -> moved = true; epoch = 2; queued[0] = 0; queued[1] = 0;
		/* what lay in the old buffer was not taken: it is resent */
		arrived[0] = taken[0]; arrived[1] = taken[1];
		taken[0] = 0; taken[1] = 0; sent[0] = 0; sent[1] = 0 }
	od
}

/* Whatever bulk does, tokens arrive; and bulk does too unless the application leaves it. */
active proctype Watch() {
	timeout -> assert(before[0] + offset[0] == TOTAL && queued[0] == 0);
#ifndef STUCK
	assert(before[1] + offset[1] == TOTAL)
#endif
}
