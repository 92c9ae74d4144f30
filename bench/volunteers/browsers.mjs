// SPDX-License-Identifier: Apache-2.0
// Case browsers_N of bench `volunteers`: N real Chromium pages join at once, ours and the original
// overlay one after the other in the same run, each in a browser of its own. Ours counts as connected
// when a first result was accepted through the tree; the original when its parent answered.
// usage: browsers.mjs RECLAIM N
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import http from 'node:http'
import { createRequire } from 'node:module'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { Map, launch, open } from '../../tests/browser/harness.mjs'

const here = path.dirname(fileURLToPath(import.meta.url))
const [reclaim, count = '100'] = process.argv.slice(2)
const N = Number(count), LIMIT_MS = 60000

function line(system, metric, value, unit) {
	console.log(JSON.stringify({ bench: 'volunteers', case: `browsers_${N}`, system, metric, value: Math.round(value * 1000) / 1000, unit, n: 1 }))
}

const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))] ?? NaN

// Starts all; each page itself notes when `connected` (code, evaluated there) became true, for asking a
// hundred pages all the time would keep the machine from connecting them. Seconds for each.
async function race(pages, start, connected) {
	await Promise.all(pages.map((p) => p.evaluate((code) => {
		const done = new Function(`return ${code}`), timer = setInterval(() => { if (done()) { window.connectedAt = Date.now(); clearInterval(timer) } }, 20)
	}, connected)))
	const t0 = Date.now(), took = pages.map(() => undefined)
	await Promise.all(pages.map(start))
	while (took.includes(undefined) && Date.now() - t0 < LIMIT_MS) {
		await new Promise((r) => setTimeout(r, 500))
		await Promise.all(pages.map(async (p, i) => { if (took[i] === undefined) took[i] = await p.evaluate(() => window.connectedAt) }))
	}
	return took.filter((t) => t !== undefined).map((t) => (t - t0) / 1000).sort((a, b) => a - b)
}

function report(system, took) {
	line(system, 'connected', took.length, 'pages')
	line(system, 'seconds', took.length === N ? took[N - 1] : NaN, 's')
	line(system, 'seconds_p50', quantile(took, 0.5), 's')
}

async function loadPages(browser, make) {
	const pages = []
	for (let i = 0; i < N; i += 10) pages.push(...await Promise.all(Array.from({ length: Math.min(10, N - i) }, make)))
	return pages
}

async function ours() {
	const browser = await launch()
	const map = new Map(reclaim, [path.join(here, 'echo_slow.js'), '--unordered', '--quiet', '0..100000000'])
	const url = await map.url()
	const pages = await loadPages(browser, () => open(browser, url, { query: '?cores=1' }))
	const took = await race(pages, (p) => p.evaluate(() => document.getElementById('go').click()), 'window.volunteer?.done > 0 && window.volunteer.node?.stats().attached')
	await map.stop()
	await browser.close()
	return took
}

async function original() {
	const require = createRequire(path.join(here, 'peer/page.js'))
	const dir = fs.mkdtempSync('/tmp/reclaim-peer-')
	const bundled = spawnSync(path.join(here, 'peer/node_modules/.bin/browserify'), [path.join(here, 'peer/page.js'), '-o', path.join(dir, 'page.bundle.js')], { stdio: 'inherit' })
	if (bundled.status !== 0) throw new Error('browserify failed')
	const server = http.createServer((req, res) => {
		if (req.url === '/page.bundle.js') return fs.createReadStream(path.join(dir, 'page.bundle.js')).pipe(res)
		res.setHeader('content-type', 'text/html')
		res.end('<!doctype html><meta charset="utf-8"><script src="/page.bundle.js"></script>')
	})
	await new Promise((r) => server.listen(0, '127.0.0.1', r))
	const host = `127.0.0.1:${server.address().port}`
	const { Server } = require('webrtc-bootstrap')
	new Server('secret', { httpServer: server })
	const browser = await launch()
	const newPage = async () => { const p = await browser.newPage(); await p.goto(`http://${host}/`); return p }
	const root = await newPage()
	await root.evaluate((h) => window.start(h, true), host)
	const pages = await loadPages(browser, newPage)
	const took = await race(pages, (p) => p.evaluate((h) => window.start(h, false), host), 'window.connected')
	await browser.close()
	server.close()
	fs.rmSync(dir, { recursive: true })
	return took
}

report('reclaim', await ours())
report('genet_js', await original())
process.exit(0)
