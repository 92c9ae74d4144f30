// SPDX-License-Identifier: Apache-2.0
// Runs `reclaim map` and headless Chromium for the tests and benches.
import { spawn } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { createRequire } from 'node:module'

const require = createRequire(import.meta.url)

export const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
	'--disable-component-update', '--disable-sync', '--disable-background-timer-throttling', '--disable-renderer-backgrounding',
	'--disable-backgrounding-occluded-windows', '--disable-features=WebRtcHideLocalIpsWithMdns', '--disable-dev-shm-usage']

const started = new Set()
process.on('exit', () => { for (const child of started) child.kill('SIGKILL') })

export async function until(what, ms, why) {
	const end = Date.now() + ms
	for (;;) {
		const got = await what()
		if (got) return got
		if (Date.now() > end) throw new Error(`not within ${ms} ms: ${why}`)
		await new Promise((r) => setTimeout(r, 20))
	}
}

export class Map {
	// args: what follows `reclaim map`; door: how volunteers come
	constructor(reclaim, args, input, door = ['--here']) {
		this.dir = fs.mkdtempSync(path.join(os.tmpdir(), 'reclaim-map-'))
		this.urlFile = path.join(this.dir, 'url')
		this.out = ''
		this.err = ''
		this.child = spawn(reclaim, ['map', ...door, '--no-qr', '--url-file', this.urlFile, ...args], { stdio: ['pipe', 'pipe', 'pipe'] })
		started.add(this.child)
		this.child.stdout.on('data', (d) => { this.out += d })
		this.child.stderr.on('data', (d) => { this.err += d })
		this.ended = new Promise((resolve) => this.child.on('close', (code) => {
			this.code = code
			started.delete(this.child)
			fs.rmSync(this.dir, { recursive: true, force: true })
			resolve(code)
		}))
		if (input !== undefined) this.child.stdin.end(input)
	}

	async url() {
		return until(() => {
			if (this.code !== undefined) throw new Error(`reclaim map ended with ${this.code}: ${this.err}`)
			try { return fs.readFileSync(this.urlFile, 'utf8') } catch { return '' }
		}, 10000, 'the address of the map')
	}

	lines() { return this.out.split('\n').slice(0, -1) }
	stop() { this.child.kill('SIGTERM'); return this.ended }
}

export async function launch() {
	const { chromium } = require('playwright-core')
	const executablePath = ['/usr/bin/chromium', '/usr/bin/chromium-browser'].find((p) => fs.existsSync(p))
	return chromium.launch({ executablePath, headless: true, args: FLAGS })
}

export const state = (page) => page.evaluate(() => window.volunteer?.state ?? 'idle')
export const stats = (page) => page.evaluate(() => ({ state: window.volunteer?.state, done: window.volunteer?.done ?? 0, ...window.volunteer?.node?.stats() }))

export async function open(browser, url, { query = '?auto&cores=1', context } = {}) {
	const page = await (context ?? browser).newPage()
	page.on('pageerror', (e) => { page.errors = [...page.errors ?? [], e.message] })
	const u = new URL(url)
	u.search = query
	await page.goto(u.href)
	return page
}
