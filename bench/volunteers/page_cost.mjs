// SPDX-License-Identifier: Apache-2.0
// Case page of bench `volunteers`: what a value costs a page beside computing it: the processor time of
// the whole browser per value of a function that costs nothing, at a steady pace. For scale.c.
// usage: page_cost.mjs RECLAIM
import fs from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { Map, launch, open, stats, until } from '../../tests/browser/harness.mjs'

const here = path.dirname(fileURLToPath(import.meta.url))
const [reclaim] = process.argv.slice(2)
const SECONDS = 10, TICK_S = 0.01
const line = (metric, value, unit) => console.log(JSON.stringify({ bench: 'volunteers', case: 'page', system: 'reclaim', metric, value: Math.round(value * 1000) / 1000, unit, n: 1 }))

// Processor time of a process and all below it, in seconds.
function cpu(root) {
	const parents = {}, ticks = {}
	for (const pid of fs.readdirSync('/proc').filter((p) => /^\d+$/.test(p))) {
		try {
			const stat = fs.readFileSync(`/proc/${pid}/stat`, 'utf8')
			const f = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
			parents[pid] = f[1]
			ticks[pid] = Number(f[11]) + Number(f[12])
		} catch { /* it has ended */ }
	}
	const below = (pid) => pid === String(root) || (parents[pid] > 1 && below(parents[pid]))
	return Object.keys(ticks).filter(below).reduce((sum, pid) => sum + ticks[pid], 0) * TICK_S
}

const browser = await launch()
// The browser is this process' child; so is the map, which is counted out by being its own root.
const map = new Map(reclaim, [path.join(here, 'echo_paced.js'), '--unordered', '--quiet', '0..100000000'])
const page = await open(browser, await map.url())
await until(async () => { const s = await stats(page); return s.attached && s.done > 20 }, 30000, 'computing')
await new Promise((r) => setTimeout(r, 2000))
const both = () => cpu(process.pid) - cpu(map.child.pid) - process.cpuUsage().user / 1e6 - process.cpuUsage().system / 1e6
const idleFrom = both(), from = map.lines().length
await new Promise((r) => setTimeout(r, SECONDS * 1000))
const values = map.lines().length - from, busy = both() - idleFrom
await page.click('#pause')
await new Promise((r) => setTimeout(r, 3000))
const quiet = both()
await new Promise((r) => setTimeout(r, SECONDS * 1000))
const idle = both() - quiet
line('values_per_s', values / SECONDS, 'values/s')
line('page_us_per_value', 1e6 * (busy - idle) / values, 'us')
line('page_idle', idle / SECONDS, 'share of a core')
await map.stop()
await browser.close()
process.exit(0)
