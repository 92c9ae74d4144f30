// SPDX-License-Identifier: Apache-2.0
// A volunteer: the held WebSocket, the channels, the workers. Keeps nothing beyond this page.
import { Channel } from './channel.js'
import { LINK, Node, loadOverlay } from './overlay.js'

const VERSION = 1
const AWAY = 'The master cannot be reached; trying again.'
const RETRY_MIN_MS = 200, RETRY_MAX_MS = 10000

const hex = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('')

function toBase64(bytes) {
	let text = ''
	for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192))
	return btoa(text)
}

const fromBase64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0))

// What a volunteer needs whatever it computes: made while the page is read, so that the button acts at
// once. Nothing leaves the page before it is pressed.
export function warmUp() {
	return {
		overlay: loadOverlay(),
		ticker: new Worker(new URL('ticker.js', import.meta.url)),
		worker: new Worker(new URL('worker.js', import.meta.url), { type: 'module' }),
	}
}

export class Volunteer extends EventTarget {
	constructor({ origin = location.origin, invite, cores = 1, direct = true, warm = warmUp() }) {
		super()
		this.warm = warm
		warm.overlay.catch(() => {}) // start() tells
		this.origin = origin
		this.invite = invite
		this.cores = cores
		this.direct = direct && typeof RTCPeerConnection === 'function'
		this.token = hex(crypto.getRandomValues(new Uint8Array(16)))
		this.state = 'idle'
		this.paused = false
		this.channels = new Map() // link -> Channel
		this.nextGeneration = 0
		this.workers = []
		this.queue = []
		this.done = 0
		this.retryMs = RETRY_MIN_MS
	}

	say(state, detail = '') {
		this.state = state
		this.detail = detail
		this.dispatchEvent(new Event('change'))
	}

	async start() {
		this.say('connecting')
		try {
			this.overlay ??= await this.warm.overlay
		} catch (e) {
			this.say('error', `This page could not be loaded completely (${e.message}).`)
			return
		}
		this.ticker = this.warm.ticker
		this.ticker.onmessage = () => this.node?.tick()
		this.leaving = () => this.stop(true)
		addEventListener('pagehide', this.leaving)
		this.connect()
	}

	// ---- the held socket ----

	send(message) {
		if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message))
	}

	connect() {
		const url = new URL('/v1/volunteer', this.origin)
		url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:'
		const socket = this.socket = new WebSocket(url)
		socket.onopen = () => this.join()
		socket.onmessage = (e) => { if (this.socket === socket) this.receive(JSON.parse(e.data)) }
		socket.onclose = () => {
			if (this.socket !== socket || this.over) return
			this.socket = null
			this.node?.linkDown(LINK.socket)
			this.say(this.node?.stats().attached ? this.state : 'waiting', AWAY)
			setTimeout(() => { if (!this.over && !this.socket) this.connect() }, this.retryMs)
			this.retryMs = Math.min(2 * this.retryMs, RETRY_MAX_MS)
		}
	}

	async join() {
		const sdp = this.direct ? await this.makeOffer(0) : undefined
		this.send({ type: 'join', version: VERSION, kind: 'page', invite: this.invite, token: this.token, workers: String(this.cores), ...(sdp && { sdp }) })
	}

	async receive(m) {
		const generation = Number(m.generation ?? 0)
		switch (m.type) {
		case 'welcome': return this.welcome(m)
		case 'error':
			this.finish('refused', m.what)
			return
		case 'done':
			this.finish('done', m.what)
			return
		case 'ping':
			this.send({ type: 'pong' })
			return
		}
		if (!this.node) return
		switch (m.type) {
		case 'attach': {
			this.node.assigned(BigInt(m.position ?? 0), generation)
			const sdp = await this.makeOffer(generation)
			if (sdp) this.send({ type: 'offer', generation: String(generation), sdp })
			break
		}
		case 'answer': {
			const next = this.channels.get(LINK.next)
			if (!next || (this.nextGeneration !== 0 && this.nextGeneration !== generation)) break
			this.nextGeneration = generation
			if (m.position) this.node.assigned(BigInt(m.position), generation)
			await next.accept(m.sdp).catch((e) => next.end(e.message))
			break
		}
		case 'offer': {
			const slot = this.node.expect(BigInt(m.node), BigInt(m.position ?? 0), generation)
			if (slot < 0) break
			const sdp = await this.makeAnswer(slot, m.sdp)
			if (sdp) this.send({ type: 'answer', node: m.node, generation: String(generation), sdp })
			break
		}
		case 'relay':
			this.relayed = m.what
			this.node.useSocket()
			this.say('relayed', m.what)
			break
		case 'frame':
			this.node.input(LINK.socket, fromBase64(m.data))
			break
		}
	}

	async welcome(m) {
		this.retryMs = RETRY_MIN_MS
		const self = BigInt(m.node)
		if (this.node && this.self !== self) this.node = null // another master: another node
		if (!this.node) {
			this.self = self
			this.node = new Node(this.overlay, self, Number(m.degree), m.mode === 'local' ? 1 : 0, this.handlers())
		}
		this.job = m.job ?? {}
		if (!this.workers.length) {
			try {
				await this.startWorkers()
			} catch (e) {
				this.finish('error', `The function cannot run here: ${e.message}`)
				return
			}
			if (this.over) return
		}
		this.node.linkUp(LINK.socket)
		this.node.setWorkers(this.paused ? 0 : this.cores)
		if (this.relayed) this.say('relayed', this.relayed)
		else this.say(this.node.stats().attached ? 'connected' : 'joining')
	}

	// ---- channels ----

	channel(link) {
		this.channels.get(link)?.close()
		const c = new Channel(this.job?.ice_servers, {
			open: () => this.node?.linkUp(c.link),
			message: (bytes) => this.node?.input(c.link, bytes),
			closed: (why) => {
				if (this.channels.get(c.link) !== c) return
				this.channels.delete(c.link)
				if (c.link === LINK.next)
					this.send({ type: 'failed', generation: String(c.generation), what: why })
				this.node?.linkDown(c.link)
			},
		})
		c.link = link
		this.channels.set(link, c)
		return c
	}

	async makeOffer(generation) {
		const c = this.channel(LINK.next)
		c.generation = this.nextGeneration = generation
		try {
			const sdp = await c.offer()
			return c.over ? undefined : sdp
		} catch (e) {
			c.end(e.message)
		}
	}

	async makeAnswer(slot, offer) {
		const c = this.channel(slot)
		try {
			const sdp = await c.answer(offer)
			return c.over ? undefined : sdp
		} catch (e) {
			c.end(e.message)
		}
	}

	handlers() {
		return {
			send: (link, bytes) => {
				if (link === LINK.socket) this.send({ type: 'frame', data: toBase64(bytes) })
				else this.channels.get(link)?.send(bytes)
			},
			close: (link) => {
				this.channels.get(link)?.close()
				this.channels.delete(link)
			},
			promote: () => {
				this.channels.get(LINK.parent)?.close()
				const c = this.channels.get(LINK.next)
				c.link = LINK.parent
				this.channels.delete(LINK.next)
				this.channels.set(LINK.parent, c)
			},
			compute: (value, bytes) => this.compute(value, bytes),
			cancel: (value) => this.cancel(value),
			makeOffer: (generation) => {
				this.makeOffer(generation).then((sdp) => { if (sdp) this.node?.offerMade(sdp) })
			},
			takeOffer: (slot, sdp) => {
				this.makeAnswer(slot, sdp).then((answer) => { if (answer) this.node?.answerMade(slot, answer) })
			},
			takeAnswer: (sdp) => {
				const next = this.channels.get(LINK.next)
				next?.accept(sdp).catch((e) => next.end(e.message))
			},
			parentChanged: (up) => {
				if (!up) this.send({ type: 'detached' })
				else this.relayed = undefined
				queueMicrotask(() => {
					if (this.over) return
					if (!up && !this.socket) this.say('waiting', AWAY)
					else this.say(this.paused ? 'paused' : up ? 'connected' : 'repairing')
				})
			},
			childChanged: (up, child, generation) => {
				if (!up) this.send({ type: 'lost', node: String(child), generation: String(generation) })
				queueMicrotask(() => this.dispatchEvent(new Event('change')))
			},
		}
	}

	// ---- computing ----

	async startWorkers() {
		const f = this.job.function ?? {}
		const response = await fetch(new URL(f.path, this.origin))
		if (!response.ok) throw new Error(`its file is not there (${response.status})`)
		const bytes = new Uint8Array(await response.arrayBuffer())
		if (f.sha256) {
			// Absent where the page came in clear from elsewhere; the page itself came no safer then.
			const digest = await crypto.subtle?.digest('SHA-256', bytes)
			if (digest && hex(new Uint8Array(digest)) !== f.sha256) throw new Error('its file was changed on the way')
		}
		this.code = { kind: f.kind, bytes }
		await this.addWorker()
	}

	addWorker() {
		const worker = this.warm.worker ?? new Worker(new URL('worker.js', import.meta.url), { type: 'module' })
		this.warm.worker = undefined
		const w = { worker, value: undefined }
		this.workers.push(w)
		return new Promise((resolve, reject) => {
			worker.onmessage = ({ data }) => {
				if (data.ready) {
					w.ready = true
					resolve()
					this.dispatch()
				} else if (data.broken) {
					reject(new Error(data.broken))
				} else {
					this.finished(w, data)
				}
			}
			worker.onerror = (e) => {
				e.preventDefault?.()
				reject(new Error(e.message))
				if (w.value !== undefined) this.finished(w, { value: w.value, failed: true, took: 0, bytes: new TextEncoder().encode(e.message ?? 'the worker died') })
			}
			worker.postMessage(this.code)
		})
	}

	compute(value, bytes) {
		this.queue.push({ value, bytes })
		if (this.workers.length < this.cores) this.addWorker().catch(() => {}) // the first one works: fewer cores then
		queueMicrotask(() => this.dispatch())
	}

	dispatch() {
		for (const w of this.workers) {
			if (!w.ready || w.value !== undefined) continue
			const job = this.queue.shift()
			if (!job) return
			w.value = job.value
			w.worker.postMessage(job, [job.bytes.buffer])
		}
	}

	finished(w, { value, failed, bytes, took }) {
		if (w.value !== value) return
		w.value = undefined
		this.done += !failed
		this.failures = (this.failures ?? 0) + failed
		this.node?.result(value, failed, bytes, took)
		this.dispatch()
		this.dispatchEvent(new Event('change'))
	}

	cancel(value) {
		this.queue = this.queue.filter((job) => job.value !== value)
		const i = this.workers.findIndex((w) => w.value === value)
		if (i < 0) return
		this.workers[i].worker.terminate() // the only way to stop a function in the middle
		this.workers.splice(i, 1)
		if (this.queue.length) this.addWorker().catch(() => {})
	}

	// ---- the person's wishes ----

	setCores(n) {
		this.cores = n
		if (this.node && !this.paused) this.node.setWorkers(n)
	}

	setPaused(paused) {
		this.paused = paused
		this.node?.setWorkers(paused ? 0 : this.cores)
		this.say(paused ? 'paused' : this.node?.stats().attached ? 'connected' : this.relayed ? 'relayed' : 'joining')
	}

	stop(quiet) {
		if (this.over) return
		this.node?.leave()
		this.send({ type: 'leave' })
		this.finish('left', '', quiet)
	}

	finish(state, detail) {
		if (this.over) return
		this.over = true
		removeEventListener('pagehide', this.leaving)
		this.socket?.close()
		for (const c of this.channels.values()) c.close()
		this.channels.clear()
		for (const w of this.workers) w.worker.terminate()
		this.ticker?.terminate()
		this.warm.worker?.terminate()
		this.node = null
		this.say(state, detail)
	}
}
