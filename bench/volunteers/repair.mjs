// SPDX-License-Identifier: Apache-2.0
// Case chaos of bench `volunteers`, metric repair_s: among 20 pages an inner one with five children
// closes. How long until every other page computes, and stands in the tree, again.
// usage: repair.mjs RECLAIM
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { Map, launch, open, stats, until } from '../../tests/browser/harness.mjs'

const here = path.dirname(fileURLToPath(import.meta.url))
const [reclaim] = process.argv.slice(2)
const line = (metric, value) => console.log(JSON.stringify({ bench: 'volunteers', case: 'chaos', system: 'reclaim', metric, value: value / 1000, unit: 's', n: 1 }))

const browser = await launch()
const map = new Map(reclaim, [path.join(here, 'echo.js'), '--degree', '5', '--unordered', '--quiet', '0..100000000'])
const url = await map.url(), pages = []
for (let i = 0; i < 20; i++) pages.push(await open(browser, url))
await until(async () => (await Promise.all(pages.map(stats))).every((s) => s.attached && s.done > 0), 90000, 'all connected')
const inner = (await Promise.all(pages.map(stats))).findIndex((s) => s.children >= 5)
const rest = pages.filter((_, i) => i !== inner), before = (await Promise.all(rest.map(stats))).map((s) => s.done)
const t0 = Date.now()
await pages[inner].close({ runBeforeUnload: false })
await until(async () => (await Promise.all(rest.map(stats))).every((s, i) => s.done > before[i] + 1), 60000, 'all computing')
line('repair_s', Date.now() - t0)
await until(async () => (await Promise.all(rest.map(stats))).every((s) => s.attached), 60000, 'all in the tree')
line('repair_tree_s', Date.now() - t0)
await map.stop()
await browser.close()
process.exit(0)
