/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement. Nodes are ranked once by how long they last; each job looks at
 * the best so many of them that the facts allow, and at those that hold part
 * of its image already. Jobs choose in order of the work that a move saves,
 * each seeing the links and slots as those before it leave them. Admission
 * then checks all moves together on every link; whoever it drops may choose
 * once more among destinations that avoid the full link, then stages on a
 * neighbour. Who is still open then goes without a floor if what it may expect
 * to save is worth the wait, or falls back to its last durable image.
 */
#include "policy/placement.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/cleanup.h"

#define CANDIDATES_DEFAULT 64
#define HORIZON_MAX_S (2 * 86400.0)
#define ROUNDS 3

struct work {
	const struct network *net;
	const struct placement_node *nodes;
	size_t nodes_count, rank_count;
	const struct placement_job *jobs;
	size_t jobs_count;
	const struct placement_config *config;
	struct arena arena;
	const uint32_t *rank; /* nodes, longest-lasting first */
	uint32_t *skip;      /* rank position -> next position worth looking at */
	uint32_t *slots;     /* left, by node */
	uint64_t *mem, *disk;
	/* Bytes promised, by link. Never cleared, for a campus has many links and a plan looks at
	 * few: a link counts only if busy_at and busy_links name each other. */
	double *busy;
	uint32_t *busy_at, *busy_links, busy_count;
	bool usual;          /* links as they usually are, not at their busiest */
	uint32_t *avoid_link; /* by job: link that admission found full, or NETWORK_NONE */
};

const char *placement_refusal(const struct placement_node *n, const struct placement_job *j)
{
	if (!n->lent)
		return "not lent";
	if (n->slot_kind != j->slot_kind)
		return "another kind of slot";
	if (j->gpu_type && n->gpu_type != j->gpu_type)
		return j->transparent ? "another GPU type than the image's" : "another GPU type";
	if (j->gpu_mem_bytes > n->gpu_mem_bytes)
		return "too little GPU memory";
	/* ISA levels below 100 form one line, the others stand alone. */
	if (j->isa_level >= 100 || n->isa_level >= 100 ? j->isa_level != n->isa_level :
							 j->isa_level > n->isa_level)
		return "instruction set";
	if (j->glibc > n->glibc)
		return "glibc too old";
	if (j->transparent ? j->driver && j->driver != n->driver : j->driver > n->driver)
		return "GPU driver";
	if (n->slots_free < j->slots)
		return "no free slot";
	if (n->mem_free_bytes < j->mem_bytes)
		return "too little memory";
	if (n->disk_free_bytes < j->disk_bytes)
		return "too little disk";
	return NULL;
}

static double busy(const struct work *w, uint32_t link)
{
	uint32_t at = w->busy_at[link];
	return at < w->busy_count && w->busy_links[at] == link ? w->busy[link] : 0;
}

static void busy_add(struct work *w, uint32_t link, double bytes)
{
	double sum = fmax(busy(w, link) + bytes, 0);
	uint32_t at = w->busy_at[link];
	if (at >= w->busy_count || w->busy_links[at] != link) {
		w->busy_at[link] = w->busy_count;
		w->busy_links[w->busy_count++] = link;
	}
	w->busy[link] = sum;
}

static bool avoided(const struct placement_job *j, uint32_t node)
{
	for (size_t i = 0; i < j->avoid_count; i++)
		if (j->avoid[i] == node)
			return true;
	return node == j->source;
}

static double bytes_missing(const struct placement_job *j, uint32_t node)
{
	double have = 0;
	for (size_t i = 0; i < j->have_count; i++)
		if (j->have[i].node == node)
			have = fmax(have, j->have[i].bytes);
	return fmax(j->image_bytes - have, 0);
}

static double survival(const struct work *w, const struct placement_node *n,
		       const struct placement_job *j)
{
	if (w->config->hazard_blind)
		return 1;
	double horizon = fmin(j->remaining_s, HORIZON_MAX_S);
	double s = n->survival >= 0 && n->survival <= 1 ? n->survival :
							  exp(-n->hazard_per_s * horizon);
	/* A room in which a group is arriving is about to lose more than its rate says. */
	return s * (1 - fmin(fmax((n->room_shock - 1) * 0.02, 0), 0.3));
}

/* Bytes per second and bytes ahead of us on the worst link of the path; the path's links. */
static int path_of(const struct work *w, const struct placement_job *j, uint32_t node,
		   uint32_t path[NETWORK_PATH_MAX], double *ret_bps, double *ret_ahead_s)
{
	*ret_bps = INFINITY;
	*ret_ahead_s = 0;
	if (j->source == PLACEMENT_NONE)
		return 0;
	int count = network_path(w->net, j->source, node, path);
	if (count < 0)
		return count;
	if (w->config->topology_blind)
		count = MIN(count, 1);
	for (int k = 0; k < count; k++) {
		const struct network_link *l = &w->net->links[path[k]];
		double b = w->usual ? network_usual_bps(l) : network_budget_bps(l);
		*ret_bps = fmin(*ret_bps, b);
		*ret_ahead_s = fmax(*ret_ahead_s, b > 0 ? busy(w, path[k]) / b : INFINITY);
	}
	return count;
}

struct option_score {
	uint32_t node;
	double score, bytes, p_fit, survival, arrive_s;
	uint32_t path[NETWORK_PATH_MAX];
	int path_count;
};

static double p_fits(const struct work *w, const struct placement_job *j, double arrive_s,
		     double move_s)
{
	double left = j->window_s - w->config->margin_s - arrive_s;
	if (w->config->deadline_blind || j->window_s == INFINITY)
		return 1;
	double spread = w->config->uncertainty > 0 ? w->config->uncertainty : 0.15;
	if (w->usual)
		spread *= 2;
	if (!(move_s > 0))
		return left >= 0 ? 1 : 0;
	return left < 0 ? 0 : 1 - 0.5 * exp(-1.7 * left / (spread * move_s));
}

/* The chance that its owner's window will not be enough for this job to get away again. */
static double p_miss_there(const struct work *w, const struct placement_node *n,
			   const struct placement_job *j)
{
	uint32_t up = w->net->node_up[n - w->nodes];
	double need = j->save_again_s + j->image_bytes / fmax(network_budget_bps(&w->net->links[up]), 1);
	if (n->window_s < 0 || w->config->deadline_blind)
		return 1;
	double x = 1.7 * (n->window_s - need) / fmax(0.15 * need, 1e-3);
	return 1 / (1 + exp(fmin(fmax(x, -60), 60)));
}

static bool score(const struct work *w, const struct placement_job *j, uint32_t node, bool stage,
		  struct option_score *ret)
{
	const struct placement_node *n = &w->nodes[node];
	double bps, ahead;
	ret->path_count = path_of(w, j, node, ret->path, &bps, &ahead);
	if (ret->path_count < 0)
		return false;
	ret->node = node;
	ret->bytes = j->source == PLACEMENT_NONE ? 0 : bytes_missing(j, node);
	double move = ret->bytes > 0 ? ret->bytes / bps + ahead : 0;
	if (!(move < INFINITY))
		return false;
	ret->arrive_s = j->save_s + move;
	ret->p_fit = p_fits(w, j, ret->arrive_s, move);
	ret->survival = stage ? 1 : survival(w, n, j);
	double weight = w->config->downtime_weight > 0 ? w->config->downtime_weight : 1;
	double down = j->slots * weight * (ret->arrive_s + j->restart_s);
	double leave = (1 - ret->survival) *
		       (j->loss_per_reclaim_s * p_miss_there(w, n, j) + j->slots * j->restart_s);
	uint32_t free_slots = stage ? j->slots : w->slots[node];
	double leftover = free_slots > j->slots ? free_slots - j->slots : 0;
	ret->score = j->unsaved_work_s * ret->p_fit - down - leave -
		     w->config->leftover_price * leftover -
		     w->config->byte_price * ret->bytes * ret->path_count;
	return true;
}

/* Next position in the ranking at or after i that still has slots (path halving). */
static uint32_t position(struct work *w, uint32_t i)
{
	while (i < w->rank_count && w->skip[i] != i)
		i = w->skip[i] = w->skip[w->skip[i]];
	return i;
}

static struct placement_node node_now(const struct work *w, uint32_t node)
{
	struct placement_node n = w->nodes[node];
	n.slots_free = w->slots[node];
	n.mem_free_bytes = w->mem[node];
	n.disk_free_bytes = w->disk[node];
	return n;
}

static bool crosses(const struct option_score *o, uint32_t link)
{
	for (int k = 0; k < o->path_count; k++)
		if (o->path[k] == link)
			return true;
	return false;
}

/* Weighs one node; counts why not. */
static bool weigh(struct work *w, size_t job, uint32_t node, struct option_score *best,
		  struct placement *p)
{
	const struct placement_job *j = &w->jobs[job];
	struct placement_node n = node_now(w, node);
	struct option_score o;
	if (avoided(j, node))
		return false;
	const char *why = placement_refusal(&n, j);
	if (why) {
		bool room = n.slots_free < j->slots || n.mem_free_bytes < j->mem_bytes ||
			    n.disk_free_bytes < j->disk_bytes;
		p->rejected_room += room;
		p->rejected_kind += !room;
		return false;
	}
	if (!score(w, j, node, false, &o))
		return false;
	p->considered++;
	if (o.p_fit <= 0 || (w->avoid_link[job] != NETWORK_NONE && crosses(&o, w->avoid_link[job]))) {
		p->rejected_time++;
		return false;
	}
	if (best->node == PLACEMENT_NONE || o.score > best->score)
		*best = o;
	return true;
}

static void search(struct work *w, size_t job, struct option_score *best, struct placement *p)
{
	const struct placement_job *j = &w->jobs[job];
	size_t most = w->config->candidates_max ? w->config->candidates_max : CANDIDATES_DEFAULT;
	size_t found = 0, looked = 0;
	best->node = PLACEMENT_NONE;
	p->considered = p->rejected_kind = p->rejected_room = p->rejected_time = 0;
	for (size_t i = 0; i < j->have_count; i++)
		(void)weigh(w, job, j->have[i].node, best, p);
	/* The ranking mixes kinds, so the walk is longer than what it finds, but bounded. */
	for (uint32_t i = position(w, 0); i < w->rank_count && found < most && p->considered < 2 * most &&
						       looked < 64 * most;
	     i = position(w, i + 1), looked++)
		found += weigh(w, job, w->rank[i], best, p);
}

/* A neighbour that keeps the image: any disk that the window reaches. */
static void search_stage(struct work *w, size_t job, struct option_score *best)
{
	const struct placement_job *j = &w->jobs[job];
	size_t most = w->config->candidates_max ? w->config->candidates_max : CANDIDATES_DEFAULT;
	size_t found = 0;
	best->node = PLACEMENT_NONE;
	for (uint32_t i = 0, tried = 0; i < w->rank_count && found < most && tried < 4 * most; i++) {
		uint32_t node = w->rank[i];
		struct option_score o;
		const struct placement_node *n = &w->nodes[node];
		if ((!n->lent && !n->stage_only) || (double)w->disk[node] < j->image_bytes ||
		    avoided(j, node))
			continue;
		tried++;
		if (!score(w, j, node, true, &o) || o.p_fit <= 0)
			continue;
		if (w->avoid_link[job] != NETWORK_NONE && crosses(&o, w->avoid_link[job]))
			continue;
		found++;
		if (best->node == PLACEMENT_NONE || o.score > best->score)
			*best = o;
	}
}

/* sign 1 takes what the option needs, -1 gives it back. */
static void occupy(struct work *w, const struct placement_job *j, const struct option_score *o,
		   bool stage, int sign)
{
	uint64_t disk = stage ? (uint64_t)j->image_bytes : j->disk_bytes;
	w->disk[o->node] -= (uint64_t)sign * MIN(disk, w->disk[o->node] + (sign < 0 ? disk : 0));
	if (!stage) {
		w->slots[o->node] -= (uint32_t)sign * j->slots;
		w->mem[o->node] -= (uint64_t)sign * j->mem_bytes;
	}
	if (j->window_s < INFINITY)
		for (int k = 0; k < o->path_count; k++)
			busy_add(w, o->path[k], sign * o->bytes);
}

struct ranked_node {
	uint32_t node;
	double hazard;
};

static int ranked_node_order(const void *a, const void *b)
{
	const struct ranked_node *x = a, *y = b;
	if (x->hazard != y->hazard)
		return x->hazard < y->hazard ? -1 : 1;
	return x->node < y->node ? -1 : x->node > y->node;
}

static void rank_make(const struct work *w, struct ranked_node *order, uint32_t *ret)
{
	size_t n = w->nodes_count;
	for (uint32_t i = 0; i < n; i++) {
		const struct placement_node *p = &w->nodes[i];
		double s = p->survival >= 0 && p->survival <= 1 ? -log(fmax(p->survival, 1e-300)) :
								  p->hazard_per_s;
		order[i] = (struct ranked_node){ i, w->config->hazard_blind ? 0 : s };
	}
	qsort(order, n, sizeof(*order), ranked_node_order);
	for (uint32_t i = 0; i < n; i++)
		ret[i] = order[i].node;
}

static void node_open(struct work *w, uint32_t node)
{
	w->slots[node] = w->nodes[node].slots_free;
	w->mem[node] = w->nodes[node].mem_free_bytes;
	w->disk[node] = w->nodes[node].disk_free_bytes;
}

static int work_init(struct work *w)
{
	struct arena *a = &w->arena;
	size_t n = w->nodes_count, links = w->net->links_count;
	struct ranked_node *order = NULL;
	uint32_t *rank = NULL;
	if (!w->config->rank) {
		order = arena_alloc(a, (n + 1) * sizeof(*order));
		rank = arena_alloc(a, (n + 1) * sizeof(uint32_t));
		if (!order || !rank)
			return -ENOMEM;
	}
	w->rank = rank ? rank : w->config->rank;
	w->rank_count = order ? n : w->config->rank_count;
	w->skip = arena_alloc(a, (w->rank_count + 2) * sizeof(uint32_t));
	/* Of these only what a plan looks at is ever touched: large campus, small cost. */
	w->slots = malloc((n + 1) * sizeof(uint32_t));
	w->mem = malloc((n + 1) * sizeof(uint64_t));
	w->disk = malloc((n + 1) * sizeof(uint64_t));
	w->busy = malloc((links + 1) * sizeof(double));
	w->busy_at = malloc((links + 1) * sizeof(uint32_t));
	w->busy_links = malloc((links + 1) * sizeof(uint32_t));
	w->avoid_link = arena_alloc(a, (w->jobs_count + 1) * sizeof(uint32_t));
	if (!w->skip || !w->slots || !w->mem || !w->disk || !w->busy || !w->busy_at ||
	    !w->busy_links || !w->avoid_link)
		return -ENOMEM;
	if (order)
		rank_make(w, order, rank);
	for (uint32_t i = 0; i < w->rank_count; i++)
		node_open(w, w->rank[i]);
	for (size_t j = 0; j < w->jobs_count; j++)
		for (size_t i = 0; i < w->jobs[j].have_count; i++)
			node_open(w, w->jobs[j].have[i].node);
	for (uint32_t i = 0; i < w->rank_count; i++) {
		const struct placement_node *p = &w->nodes[w->rank[i]];
		w->skip[i] = p->lent && p->slots_free > 0 ? i : i + 1;
	}
	w->skip[w->rank_count] = (uint32_t)w->rank_count;
	for (size_t j = 0; j < w->jobs_count; j++)
		w->avoid_link[j] = NETWORK_NONE;
	return 0;
}

static int check_input(const struct work *w, const struct transfer *running, size_t count)
{
	if (w->nodes_count != w->net->nodes_count)
		return -EINVAL;
	for (size_t i = 0; w->config->rank && i < w->config->rank_count; i++)
		if (w->config->rank[i] >= w->nodes_count)
			return -EINVAL;
	for (size_t j = 0; j < w->jobs_count; j++) {
		if (w->jobs[j].source != PLACEMENT_NONE && w->jobs[j].source >= w->nodes_count)
			return -EINVAL;
		for (size_t i = 0; i < w->jobs[j].have_count; i++)
			if (w->jobs[j].have[i].node >= w->nodes_count)
				return -EINVAL;
	}
	for (size_t i = 0; i < count; i++)
		for (uint32_t k = 0; k < running[i].links_count; k++)
			if (running[i].links[k] >= w->net->links_count)
				return -EINVAL;
	return 0;
}

struct ranked_job {
	uint32_t job;
	bool moves;
	double key;
	uint64_t id;
};

static int ranked_job_order(const void *a, const void *b)
{
	const struct ranked_job *x = a, *y = b;
	if (x->moves != y->moves)
		return x->moves ? -1 : 1;
	if (x->key != y->key)
		return x->key > y->key ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

static struct transfer transfer_of(const struct work *w, const struct placement_job *j,
				   const struct option_score *o)
{
	struct transfer t = {
		.id = j->id,
		.bytes = o->bytes,
		.start_in_s = j->save_s,
		.deadline_in_s = w->config->deadline_blind ? INFINITY :
							     j->window_s - w->config->margin_s,
		.saved_work = j->unsaved_work_s,
		.links_count = (uint32_t)o->path_count,
	};
	memcpy(t.links, o->path, (size_t)o->path_count * sizeof(*t.links));
	return t;
}

static void answer(struct placement *p, enum placement_verdict verdict,
		   const struct option_score *o)
{
	p->verdict = verdict;
	p->node = o->node;
	p->score = o->score;
	p->bytes = o->bytes;
	p->p_fit = o->p_fit;
	p->survival = o->survival;
	p->finish_in_s = o->arrive_s;
}

/* One round: everybody who is still open chooses, then admission speaks. */
static int round_play(struct work *w, const struct ranked_job *order, int round,
		      struct option_score *options, uint8_t *open, struct transfer *transfers,
		      struct admission *admissions, size_t running_count, struct placement *ret)
{
	bool stage = round == ROUNDS - 1;
	for (size_t i = 0; i < w->jobs_count; i++) {
		size_t j = order[i].job;
		const struct placement_job *job = &w->jobs[j];
		if (!open[j])
			continue;
		if (stage && (job->window_s == INFINITY || job->source == PLACEMENT_NONE))
			continue;
		if (stage)
			search_stage(w, j, &options[j]);
		else
			search(w, j, &options[j], &ret[j]);
		if (options[j].node == PLACEMENT_NONE)
			continue;
		occupy(w, job, &options[j], stage, 1);
		answer(&ret[j], stage ? PLACEMENT_STAGE : PLACEMENT_MOVE, &options[j]);
		open[j] = 0;
	}
	/* Admission over all that move inside a window, and all that run already. */
	size_t n = running_count;
	for (size_t j = 0; j < w->jobs_count; j++)
		if (!open[j] && w->jobs[j].window_s < INFINITY &&
		    w->jobs[j].source != PLACEMENT_NONE)
			transfers[n++] = transfer_of(w, &w->jobs[j], &options[j]);
	struct admission_config config = { .topology_blind = w->config->topology_blind,
					   .deadline_blind = w->config->deadline_blind };
	int r = admission_plan(w->net, transfers, n, &config, admissions, NULL);
	if (r < 0)
		return r;
	n = running_count;
	for (size_t j = 0; j < w->jobs_count; j++) {
		if (open[j] || !(w->jobs[j].window_s < INFINITY) ||
		    w->jobs[j].source == PLACEMENT_NONE)
			continue;
		const struct admission *a = &admissions[n++];
		if (a->verdict == ADMISSION_ADMITTED || a->verdict == ADMISSION_BACKGROUND) {
			ret[j].floor_bps = a->floor_bps;
			ret[j].promised = a->verdict == ADMISSION_ADMITTED;
			if (a->verdict == ADMISSION_ADMITTED)
				ret[j].finish_in_s = a->finish_in_s;
			continue;
		}
		occupy(w, &w->jobs[j], &options[j], ret[j].verdict == PLACEMENT_STAGE, -1);
		w->avoid_link[j] = a->bottleneck;
		ret[j].verdict = PLACEMENT_FALLBACK;
		ret[j].node = PLACEMENT_NONE;
		open[j] = 1;
	}
	return 0;
}

/* Better than giving up at once? If it does not arrive, all of the window was downtime. */
static bool worth_a_try(const struct work *w, const struct placement_job *j,
			const struct option_score *o)
{
	double weight = w->config->downtime_weight > 0 ? w->config->downtime_weight : 1;
	double wait = o->p_fit * o->arrive_s + (1 - o->p_fit) * j->window_s;
	return o->node != PLACEMENT_NONE && o->p_fit * j->unsaved_work_s > weight * j->slots * wait;
}

/* On what research leaves as a rule, behind all that was promised. */
static bool try_unpromised(struct work *w, size_t job, struct placement *p)
{
	const struct placement_job *j = &w->jobs[job];
	struct option_score best;
	bool stage = false;
	if (!(j->window_s < INFINITY) || j->source == PLACEMENT_NONE || w->config->deadline_blind)
		return false;
	w->usual = true;
	w->avoid_link[job] = NETWORK_NONE;
	search(w, job, &best, p);
	if (!worth_a_try(w, j, &best)) {
		stage = true;
		search_stage(w, job, &best);
	}
	w->usual = false;
	if (!worth_a_try(w, j, &best))
		return false;
	occupy(w, j, &best, stage, 1);
	answer(p, stage ? PLACEMENT_STAGE : PLACEMENT_MOVE, &best);
	return true;
}

/* Without its newest image a job may still start somewhere from the durable one. */
static void fall_back(struct work *w, size_t job, struct placement *p)
{
	struct placement_job j = w->jobs[job];
	struct option_score best;
	const struct placement_job *jobs = w->jobs;
	j.window_s = INFINITY;
	w->jobs = &j;
	uint32_t avoid = w->avoid_link[0];
	w->avoid_link[0] = NETWORK_NONE;
	struct placement ignored = *p;
	search(w, 0, &best, &ignored);
	w->avoid_link[0] = avoid;
	w->jobs = jobs;
	*p = (struct placement){ .verdict = PLACEMENT_FALLBACK,
				 .node = best.node,
				 .considered = ignored.considered,
				 .rejected_kind = p->rejected_kind,
				 .rejected_room = p->rejected_room,
				 .rejected_time = p->rejected_time };
	if (best.node == PLACEMENT_NONE)
		return;
	p->survival = best.survival;
	p->score = best.score;
	w->slots[best.node] -= j.slots;
	w->mem[best.node] -= j.mem_bytes;
	w->disk[best.node] -= j.disk_bytes;
}

int placement_plan(const struct network *net, const struct placement_node *nodes,
		   size_t nodes_count, const struct placement_job *jobs, size_t jobs_count,
		   const struct transfer *running, size_t running_count,
		   const struct placement_config *config, struct placement *ret)
{
	static const struct placement_config plain;
	struct work w = { .net = net,
			  .nodes = nodes,
			  .nodes_count = nodes_count,
			  .jobs = jobs,
			  .jobs_count = jobs_count,
			  .config = config ? config : &plain,
			  .arena = ARENA_INIT };
	int r = check_input(&w, running, running_count);
	if (r == 0)
		r = work_init(&w);
	size_t most = jobs_count + running_count + 1;
	struct ranked_job *order = arena_alloc(&w.arena, most * sizeof(*order));
	struct option_score *options = arena_alloc(&w.arena, most * sizeof(*options));
	uint8_t *open = arena_alloc(&w.arena, most);
	struct transfer *transfers = arena_alloc(&w.arena, most * sizeof(*transfers));
	struct admission *admissions = arena_alloc(&w.arena, most * sizeof(*admissions));
	if (!order || !options || !open || !transfers || !admissions)
		r = r < 0 ? r : -ENOMEM;
	for (size_t i = 0; r == 0 && i < running_count; i++) {
		transfers[i] = running[i];
		if (running[i].promised && running[i].deadline_in_s < INFINITY)
			for (uint32_t k = 0; k < running[i].links_count; k++)
				busy_add(&w, running[i].links[k], running[i].bytes);
	}
	for (size_t j = 0; r == 0 && j < jobs_count; j++) {
		order[j] = (struct ranked_job){ (uint32_t)j, jobs[j].window_s < INFINITY,
						jobs[j].unsaved_work_s / fmax(jobs[j].image_bytes, 1e6),
						jobs[j].id };
		open[j] = 1;
		ret[j] = (struct placement){ .verdict = PLACEMENT_FALLBACK, .node = PLACEMENT_NONE };
	}
	if (r == 0)
		qsort(order, jobs_count, sizeof(*order), ranked_job_order);
	for (int round = 0; r == 0 && round < ROUNDS; round++)
		r = round_play(&w, order, round, options, open, transfers, admissions,
			       running_count, ret);
	for (size_t i = 0; r == 0 && i < jobs_count; i++)
		if (open[order[i].job] && !try_unpromised(&w, order[i].job, &ret[order[i].job]))
			fall_back(&w, order[i].job, &ret[order[i].job]);
	free(w.slots);
	free(w.mem);
	free(w.disk);
	free(w.busy);
	free(w.busy_at);
	free(w.busy_links);
	arena_done(&w.arena);
	return r;
}

size_t placement_standby(const struct network *net, const struct placement_node *nodes,
			 size_t nodes_count, const struct placement_job *job,
			 const struct placement_config *config, uint32_t *ret, size_t ret_max)
{
	/* The same question with the best answers struck out one by one. */
	CLEANUP_FREE struct placement_node *left = malloc((nodes_count + 1) * sizeof(*left));
	size_t count = 0;
	if (!left)
		return 0;
	memcpy(left, nodes, nodes_count * sizeof(*left));
	while (count < ret_max) {
		struct placement p;
		if (placement_plan(net, left, nodes_count, job, 1, NULL, 0, config, &p) < 0 ||
		    p.verdict != PLACEMENT_MOVE)
			break;
		ret[count++] = p.node;
		left[p.node].lent = false;
	}
	return count;
}
