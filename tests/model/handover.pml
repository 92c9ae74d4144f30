/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One stream, one sender, the owner S in epoch 1, the target T for epoch 2, the
 * register, a coordinator that begins and calls off attempts. The rules are
 * those of src/stream/{register,owner,sender,receiver}.h; the event names too.
 *
 * Variants (-D)
 *   CRASH_S CRASH_T CRASH_C   that process may die at any step
 *   TAKEOVER                  S's lease may end; whoever sees it takes over from the stable cursor
 *   CHECKPOINT                with TAKEOVER: the stable cursor moves by checkpoint, not with every message
 *   RESET                     the link to S breaks once
 * Mutants (-D), each leaves out one rule
 *   BUG_DUAL        T delivers before the commit
 *   BUG_UNFREEZE    S resumes on its timer, without the compare-and-swap (M2)
 *   BUG_COMMIT      the coordinator commits for T (M1)
 *   BUG_ABA         S's deadline aborts only the attempt it froze for (M3)
 *   BUG_TRIM        acks promise what is delivered as stable (M4)
 *   BUG_FENCE       S writes the stable cursor after it lost the endpoint (M5)
 *   BUG_LEASE       takeover does not wait for the lease
 */
#define N 3                   /* messages */
#define W 2                   /* credit */
#define ATTEMPTS 2

#define FREE 0
#define OWN1 1                /* OWN(1, S) */
#define PREP 2                /* PREP(1, S, T, hid) */
#define OWN2 3                /* OWN(2, T) after a handover */
#define REC2 4                /* OWN(2, T) after a takeover */

mtype = { DATA, ATTACH, WELCOME, ACK, FREEZE, RESUME, MOVED };

byte reg = OWN1, hid = 0;     /* the register */
bool leaseS = true;           /* S's own view of its lease; it ends there first */
bool aliveS = true, aliveT = true;
byte state = 0;               /* what the surviving application state contains */
byte stored = 0;              /* stable cursor in the store */
bool mayS = true, mayT = false;   /* who may deliver */
byte commits = 0, lastEpoch = 1;

chan toS = [2] of { mtype, byte };      /* kind, seq or oldest */
chan toT = [2] of { mtype, byte };
chan frS = [3] of { mtype, byte, byte }; /* kind, delivered or next, stable */
chan frT = [3] of { mtype, byte, byte };
chan cut = [1] of { byte, byte, byte };  /* S to T: hid, cursor, stable */

inline deliver(e, q) {
	assert(q == state + 1);       /* exactly once, in order, for the state that survives */
	assert(e >= lastEpoch);
	assert(!(mayS && mayT));      /* one deliverer */
	lastEpoch = e; state = q;
#ifndef CHECKPOINT
	stored = q;
#endif
}

inline drain(c) { do :: nempty(c) -> c?_,_ :: empty(c) -> break od }
inline drain3(c) { do :: nempty(c) -> c?_,_,_ :: empty(c) -> break od }

proctype Sender() {
	byte e = 1, next = 1, delivered = 0, stable = 0, v, s; mtype k;
	bool attached = false, asked = false, frozen = false; bool reset = false;
endSend:
	do
	:: delivered == N && stable == N -> break
	:: atomic { (e == 1 && !asked && nfull(toS)) -> toS!ATTACH,stable + 1; asked = true }
	:: atomic { (e == 2 && !asked && nfull(toT)) -> toT!ATTACH,stable + 1; asked = true }
	:: atomic { (attached && !frozen && next <= N && next - delivered <= W && e == 1 && nfull(toS)) ->
		assert(next > stable); toS!DATA,next; next++ }
	:: atomic { (attached && !frozen && next <= N && next - delivered <= W && e == 2 && nfull(toT)) ->
		assert(next > stable); toT!DATA,next; next++ }
	:: atomic { (e == 1 && nempty(frS)) -> frS?k,v,s;
		if
		:: k == WELCOME -> assert(v > stable); attached = true; frozen = false; next = v
		:: (k == ACK && attached) -> delivered = v; if :: s > stable -> stable = s :: else fi
		:: k == FREEZE -> frozen = true
		:: k == RESUME -> frozen = false
		:: k == MOVED -> asked = false; attached = false
		:: else
		fi; v = 0; s = 0; k = DATA }
	:: atomic { (e == 2 && nempty(frT)) -> frT?k,v,s;
		if
		:: k == WELCOME -> assert(v > stable); /* all that T needs is still kept */
			attached = true; frozen = false; next = v; delivered = v - 1
		:: (k == ACK && attached) -> delivered = v; if :: s > stable -> stable = s :: else fi
		:: else
		fi; v = 0; s = 0; k = DATA }
	/* the route says so: the higher epoch wins */
	:: atomic { (e == 1 && (reg == OWN2 || reg == REC2)) -> e = 2; attached = false; asked = false; frozen = false;
		drain(toS); drain3(frS) }
#ifdef BUG_DUAL
	:: atomic { (e == 1 && reg == PREP) -> e = 2; attached = false; asked = false; frozen = false }
#endif
#ifdef RESET
	:: atomic { (e == 1 && !reset && (asked || attached)) -> reset = true; asked = false; attached = false; frozen = false;
		drain(toS); drain3(frS) }
#endif
	od
}

proctype S() {
	byte cur = 0, arrived = 0, st = 0, h = 0, seen = 0, q; mtype k;
	bool att = false, frozen = false, due = false;
endS:
	do
#ifdef CRASH_S
	/* Its lease is over only later: Clock. */
	:: atomic { aliveT -> aliveS = false; mayS = false; leaseS = false; drain(toS); drain3(frS); break }
#endif
	:: atomic { (nempty(toS) && len(frS) < 2) -> toS?k,q;
		if
		:: (k == ATTACH && leaseS) -> due = true; assert(q <= arrived + 1); att = true; frS!WELCOME,arrived + 1,st;
			if :: frozen -> frS!FREEZE,cur,st :: else fi
		:: (k == DATA && att && q == arrived + 1) -> arrived = q; assert(arrived - cur <= W)
		:: else
		fi; q = 0; k = DATA }
	:: atomic { (mayS && leaseS && !frozen && cur < arrived) -> cur++; deliver(1, cur); due = true
#ifndef CHECKPOINT
		; st = cur
#endif
		}
#ifdef CHECKPOINT
#ifdef BUG_FENCE
	:: atomic { st < cur -> st = cur; stored = cur; assert(stored <= state); due = true }
#else
	:: atomic { (leaseS && (reg == OWN1 || reg == PREP) && st < cur) -> st = cur; stored = cur; assert(stored <= state); due = true }
#endif
#endif
#ifdef BUG_TRIM
	:: atomic { (due && att && leaseS && nfull(frS)) -> frS!ACK,cur,cur; due = false }
#else
	:: atomic { (due && att && leaseS && nfull(frS)) -> frS!ACK,cur,st; due = false }
#endif
	/* PREP seen: freeze at a message boundary, hand over the cut */
	:: atomic { (!frozen && leaseS && reg == PREP && hid > seen && nfull(cut) && nfull(frS)) ->
		frozen = true; mayS = false; h = hid; seen = hid; frS!FREEZE,cur,st; cut!h,cur,st }
	/* a newer attempt while frozen: same cut, new id */
	:: atomic { (frozen && leaseS && reg == PREP && hid > h && nfull(cut)) -> h = hid; seen = hid; cut!h,cur,st }
	/* the deadline: abort the present attempt */
	:: atomic { (frozen && leaseS && reg == PREP
#ifdef BUG_ABA
		&& hid == h
#endif
		&& nfull(frS)) ->
#ifndef BUG_UNFREEZE
		reg = OWN1;
#endif
		frozen = false; mayS = true; frS!RESUME,0,0 }
#ifndef BUG_ABA
	/* called off by another, read under the lease */
	:: atomic { (frozen && leaseS && reg == OWN1 && nfull(frS)) -> frozen = false; mayS = true; frS!RESUME,0,0 }
#else
	:: atomic { (frozen && leaseS && reg == OWN1 && hid == h && nfull(frS)) -> frozen = false; mayS = true; frS!RESUME,0,0 }
#endif
#ifdef BUG_FENCE
	:: atomic { ((reg == OWN2 || reg == REC2) && st >= cur) -> mayS = false; drain(toS); break }
#else
	:: atomic { (reg == OWN2 || reg == REC2) -> mayS = false; drain(toS); drain3(frS); break }   /* tombstone */
#endif
	od
}

proctype T() {
	byte cur = 0, arrived = 0, st = 0, h = 0, old = 0, q, ch, cc, cs; mtype k;
	bool att = false, act = false, due = false, waiting = false;
endT:
	do
#ifdef CRASH_T
	:: atomic { (aliveS && leaseS && !act && reg != OWN2 && reg != REC2) -> aliveT = false; drain(toT); break }
#endif
	:: atomic { (!act && nempty(cut)) -> cut?ch,cc,cs; h = ch; cur = cc; arrived = cc; st = cs; ch = 0; cc = 0; cs = 0 }
	/* T alone commits, with the cut in hand */
	:: atomic { (!act && h > 0 && reg == PREP && hid == h) -> reg = OWN2; commits++; assert(commits == 1) }
	:: atomic { (!act && h > 0 && h == hid && reg == OWN2) -> act = true; mayT = true;
#ifndef BUG_COMMIT
		assert(cur == state)
#endif
		}
#ifdef BUG_DUAL
	:: atomic { (!act && h > 0) -> act = true; mayT = true }
#endif
#ifdef TAKEOVER
#ifdef BUG_LEASE
	:: atomic { (!act && (reg == OWN1 || reg == PREP)) ->
#else
	:: atomic { (!act && !leaseS && (reg == OWN1 || reg == PREP)) ->
#endif
		reg = REC2; commits++; assert(commits == 1); state = stored }
	:: atomic { (!act && reg == REC2) -> act = true; mayT = true; cur = stored; arrived = stored; st = stored }
#endif
	:: atomic { (nempty(toT) && !waiting) -> toT?k,q;
		if
		:: k == ATTACH -> waiting = true; old = q
		:: (k == DATA && att && q == arrived + 1) -> arrived = q; assert(arrived - cur <= W)
		:: else
		fi; q = 0; k = DATA }
	:: atomic { (waiting && act && nfull(frT)) -> waiting = false; att = true; assert(old <= arrived + 1); old = 0;
		frT!WELCOME,arrived + 1,st }
	:: atomic { (act && cur < arrived) -> cur++; deliver(2, cur); st = cur; stored = cur; due = true }
	:: atomic { (due && att && nfull(frT)) -> frT!ACK,cur,st; due = false }
	/* the last ack is repeated while the sender waits for it */
	:: atomic { (att && !due && act && cur == N && empty(frT)) -> frT!ACK,cur,cur }
	od
}

proctype Coordinator() {
	byte n = 0;
endC:
	do
#ifdef CRASH_C
	:: break
#endif
	:: atomic { (n < ATTEMPTS && reg == OWN1 && aliveT) -> n++; hid = n; reg = PREP }
	:: atomic { reg == PREP -> reg = OWN1 }
#ifdef BUG_COMMIT
	:: atomic { (reg == PREP && aliveT) -> reg = OWN2; commits++ }
#endif
	:: (reg == OWN2 || reg == REC2) -> break
	od
}

#ifdef TAKEOVER
proctype Clock() { if :: atomic { aliveT -> leaseS = false; mayS = false } :: skip fi }
#endif

/* When nothing can move any more, all is delivered and stable, unless nobody is left to take over. */
active proctype Watch() {
	timeout ->
#if defined(CHECKPOINT) || (defined(CRASH_S) && !defined(TAKEOVER))
	skip
#else
	assert(state == N)
#endif
}

init { atomic { run Sender(); run S(); run T(); run Coordinator();
#ifdef TAKEOVER
	run Clock()
#endif
} }
