// SPDX-License-Identifier: Apache-2.0
// Case collatz of bench `volunteers`: values a second of one page on each core, through the overlay,
// against one worker that computes the same values without any overlay; both in Chromium.
// usage: collatz.mjs RECLAIM BUILD
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { Map, launch, open, stats, until } from '../../tests/browser/harness.mjs'

const here = path.dirname(fileURLToPath(import.meta.url))
const [reclaim] = process.argv.slice(2)
const example = path.join(here, '../../examples/volunteer/collatz.js')
const CORES = os.cpus().length, SECONDS = 20
const line = (metric, value, unit) => console.log(JSON.stringify({ bench: 'volunteers', case: 'collatz', system: 'reclaim', metric, value: Math.round(value * 1000) / 1000, unit, n: 1 }))

// One bare worker per core, each computing its own values: what the cores can do.
async function ideal(browser, cores) {
	const page = await browser.newPage()
	await page.goto('about:blank')
	const source = fs.readFileSync(example, 'utf8')
	const rate = await page.evaluate(async ([code, n, seconds]) => {
		const body = code.replace('export default async function', 'self.f = async function').replace('export const gpu = true', '') +
			'\nonmessage = async ({ data }) => { const end = performance.now() + data.ms; let k = 0; for (let i = data.from; performance.now() < end; i++, k++) await f(String(i), { gpu: null }); postMessage(k) }'
		const url = URL.createObjectURL(new Blob([body], { type: 'text/javascript' }))
		const t0 = performance.now()
		const done = await Promise.all(Array.from({ length: n }, (_, i) => new Promise((resolve) => {
			const w = new Worker(url)
			w.onmessage = (e) => resolve(e.data)
			w.postMessage({ ms: seconds * 1000, from: 1000 * i })
		})))
		return done.reduce((a, b) => a + b, 0) * 1000 / (performance.now() - t0)
	}, [source, cores, SECONDS])
	await page.close()
	return rate
}

async function overlay(browser) {
	const map = new Map(reclaim, [example, '--unordered', '--quiet', '0..1000000'])
	const url = await map.url(), pages = []
	for (let i = 0; i < CORES; i++) pages.push(await open(browser, url))
	await until(async () => (await Promise.all(pages.map(stats))).every((s) => s.attached && s.done > 2), 60000, 'all computing')
	const count = () => map.lines().length
	const from = count(), t0 = Date.now()
	await new Promise((r) => setTimeout(r, SECONDS * 1000))
	const rate = (count() - from) * 1000 / (Date.now() - t0)
	await map.stop()
	for (const p of pages) await p.close()
	return rate
}

const browser = await launch()
const one = await ideal(browser, 1), all = await ideal(browser, CORES), through = await overlay(browser)
line('rate_one_worker', one, 'values/s')
line('rate_bare_workers', all, 'values/s')
line('rate_overlay', through, 'values/s')
line('efficiency', through / all, 'share')
await browser.close()
process.exit(0)
