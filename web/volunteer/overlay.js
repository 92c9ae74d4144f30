// SPDX-License-Identifier: Apache-2.0
// The node of the overlay: the C code of src/volunteer (node.c), as WebAssembly. It decides; this
// file only carries bytes and numbers across.

export const LINK = { parent: -1, next: -2, socket: -3 }

export async function loadOverlay(url = 'overlay.wasm') {
	const response = await fetch(url)
	if (!response.ok) throw new Error(`overlay: ${response.status}`)
	return WebAssembly.compile(await response.arrayBuffer())
}

export class Node {
	// handlers: send(link, bytes), close(link), promote(), compute(value, bytes), cancel(value),
	// makeOffer(generation), takeOffer(slot, sdp), takeAnswer(sdp), parentChanged(up, position),
	// childChanged(up, child, generation)
	constructor(module, self, degree, mode, handlers) {
		const bytes = (at, len) => new Uint8Array(this.c.memory.buffer, at, len).slice()
		const text = (at, len) => new TextDecoder().decode(bytes(at, len))
		const nothing = () => 52 // ENOSYS: the overlay has no business with files or clocks
		const wasi = new Proxy({}, { get: () => nothing, has: () => true })
		const env = {
			js_send: (link, at, len) => handlers.send(link, bytes(at, len)),
			js_close: (link) => handlers.close(link),
			js_promote: () => handlers.promote(),
			js_compute: (value, at, len) => handlers.compute(value, bytes(at, len)),
			js_cancel: (value) => handlers.cancel(value),
			js_make_offer: (generation) => handlers.makeOffer(generation),
			js_take_offer: (slot, origin, at, len) => handlers.takeOffer(slot, text(at, len)),
			js_take_answer: (at, len) => handlers.takeAnswer(text(at, len)),
			js_parent_changed: (up, position, generation) => handlers.parentChanged(!!up, BigInt.asUintN(64, position), generation),
			js_child_changed: (up, child, generation) => handlers.childChanged(!!up, BigInt.asUintN(64, child), generation),
		}
		const imports = { env, wasi_snapshot_preview1: {} }
		for (const i of WebAssembly.Module.imports(module))
			if (i.module === 'wasi_snapshot_preview1') imports.wasi_snapshot_preview1[i.name] = wasi[i.name]
		this.c = new WebAssembly.Instance(module, imports).exports
		this.c._initialize?.()
		if (this.c.page_new(BigInt.asIntN(64, self), degree, mode) !== 0)
			throw new Error('the overlay cannot start')
	}

	now() { return BigInt(Math.round(performance.timeOrigin + performance.now())) }

	withBytes(data, call) {
		const at = this.c.malloc(data.length || 1)
		if (!at) throw new Error('no memory left')
		new Uint8Array(this.c.memory.buffer, at, data.length).set(data)
		try { return call(at, data.length) } finally { this.c.free(at) }
	}

	setWorkers(n) { this.c.page_set_workers(n, this.now()) }
	useSocket() { this.c.page_use_socket(this.now()) }
	expect(child, position, generation) { return this.c.page_expect(BigInt.asIntN(64, child), position, generation, this.now()) }
	assigned(position, generation) { this.c.page_assigned(position, generation, this.now()) }
	linkUp(link) { this.c.page_link_up(link, this.now()) }
	linkDown(link) { this.c.page_link_down(link, this.now()) }
	input(link, data) { this.withBytes(data, (at, len) => this.c.page_input(link, at, len, this.now())) }
	result(value, failed, data, tookMs) {
		this.withBytes(data, (at, len) => this.c.page_result(value, failed ? 1 : 0, at, len, Math.round(tookMs), this.now()))
	}
	offerMade(sdp) { this.withBytes(new TextEncoder().encode(sdp), (at, len) => this.c.page_offer_made(at, len, this.now())) }
	answerMade(slot, sdp) { this.withBytes(new TextEncoder().encode(sdp), (at, len) => this.c.page_answer_made(slot, at, len, this.now())) }
	leave() { this.c.page_leave(this.now()) }
	tick() { this.c.page_tick(this.now()) }
	stats() {
		const at = this.c.page_stats()
		const n = new Uint32Array(this.c.memory.buffer, at, 8)
		return { computed: n[0], failed: n[1], relayed: n[2], held: n[3], children: n[4], attached: !!n[5], depth: n[6], refused: n[7] }
	}
}
