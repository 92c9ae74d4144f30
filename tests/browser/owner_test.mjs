// SPDX-License-Identifier: Apache-2.0
// The owner's page in real Chromium, on a machine of a lab with a guest that does not leave by itself.
// usage: owner_test.mjs URL URL_WITH_TOKEN MACHINE SHOTS
import assert from 'node:assert'
import { execFile } from 'node:child_process'
import fs from 'node:fs'
import http from 'node:http'
import path from 'node:path'
import { createRequire } from 'node:module'
import { FLAGS, launch, until } from './harness.mjs'

const [url, secret, machine, shots] = process.argv.slice(2)
fs.mkdirSync(shots, { recursive: true })
const shot = (page, name) => page.screenshot({ path: path.join(shots, `owner-${name}.png`), fullPage: true })
const run = (...argv) => new Promise((resolve) => execFile(argv[0], argv.slice(1), (e, out, err) => resolve({ code: e ? e.code : 0, out, err })))
const status = async () => JSON.parse((await run('on', machine, 'reclaim', 'status', '--json')).out)
const is = (page, state, ms = 20000) => until(() => page.evaluate((s) => document.body.dataset.state === s, state), ms, `the page says ${state}`)
const guest = async (page) => {
	await until(async () => (await run('on', machine, 'reclaim', 'lend')).code === 0, 20000, 'lent')
	await until(async () => /^1 guest/.test(await page.textContent('#state')), 40000, 'a guest on the page')
}
const browser = await launch()
const page = await browser.newPage()
const errors = []
page.on('pageerror', (e) => errors.push(e.message))
let failed = 0
async function test(name, fn) {
	try {
		await fn()
		console.log(`ok   ${name}`)
	} catch (e) {
		failed++
		console.log(`FAIL ${name}: ${e.stack}`)
	}
}

await test('who is here, until when', async () => {
	await page.goto(url)
	await guest(page)
	const row = await page.textContent('#guests tr')
	assert.match(row, /guest/)
	assert.match(row, /stubborn/)
	assert.match(await page.textContent('#about'), /at most/)
	assert.ok(await page.isVisible('#back') && await page.isVisible('#cut'))
	await shot(page, '1-lent')
})

await test('take back: a countdown; changed my mind; take back again: mine', async () => {
	await page.click('#back')
	await is(page, 'notice')
	assert.match(await page.textContent('#state'), /^Yours in \d+ s$/)
	await shot(page, '2-notice')
	await page.click('#cancel')
	await is(page, 'lent')
	assert.equal((await status()).state, 'lent')
	await page.click('#back')
	await is(page, 'owned', 30000)
	const s = await status()
	assert.equal(s.state, 'owned')
	assert.equal(s.proven_free, true)
	assert.ok(!(await page.isVisible('#back')) && !(await page.isVisible('#cut')))
	await shot(page, '3-mine')
})

await test('lend, then cut: mine at once', async () => {
	await page.click('#lend')
	await is(page, 'lent')
	await guest(page)
	const t0 = Date.now()
	await page.click('#cut')
	await is(page, 'owned', 10000)
	console.log(`     yours ${Date.now() - t0} ms after the click`)
	assert.ok((await status()).proven_free)
	await shot(page, '4-cut')
})

await test('another user of this machine is refused, and told so', async () => {
	await guest(page)
	const { chromium } = createRequire(import.meta.url)('playwright-core')
	const dir = fs.mkdtempSync('/tmp/reclaim-other-')
	const wrapper = path.join(dir, 'chromium')
	fs.writeFileSync(wrapper, `#!/bin/sh\nexport HOME=${dir}/home\nexec setpriv --reuid 65534 --regid 65534 --clear-groups /usr/bin/chromium "$@"\n`, { mode: 0o755 })
	fs.mkdirSync(`${dir}/home`)
	fs.mkdirSync(`${dir}/profile`)
	for (const d of [dir, `${dir}/home`, `${dir}/profile`]) fs.chownSync(d, 65534, 65534)
	const other = await chromium.launchPersistentContext(`${dir}/profile`, { executablePath: wrapper, headless: true, args: FLAGS })
	const theirs = await other.newPage()
	await theirs.goto(url)
	await is(theirs, 'refused')
	assert.match(await theirs.textContent('#about'), /nobody is not among this machine's owners/)
	assert.ok(!(await theirs.isVisible('#back')) && !(await theirs.isVisible('#cut')))
	await shot(theirs, '5-refused')
	const answers = await theirs.evaluate(async () => {
		const got = []
		for (const what of ['back', 'cut', 'lend', 'cancel']) got.push((await fetch(`/v1/owner/${what}`, { method: 'POST', body: '{}' })).status)
		return got
	})
	assert.deepEqual(answers, [403, 403, 403, 403])
	assert.equal((await status()).state, 'lent')
	await other.close()
	fs.rmSync(dir, { recursive: true, force: true })
})

await test('pages of other sites can neither ask nor frame it', async () => {
	const server = http.createServer((q, r) => r.setHeader('content-type', 'text/html').end(`<iframe src="${url}"></iframe>`)).listen(0, '127.0.0.1')
	await new Promise((r) => server.once('listening', r))
	const evil = await browser.newPage()
	await evil.goto(`http://127.0.0.1:${server.address().port}/`)
	const sent = await evil.evaluate(async (u) => {
		await fetch(`${u}v1/owner/cut`, { method: 'POST', mode: 'no-cors', body: '{}' }).catch(() => 0)
		return fetch(`${u}v1/owner`).then(() => 'read', () => 'blocked')
	}, url)
	assert.equal(sent, 'blocked')
	const frame = evil.frames()[1]
	assert.ok(!frame || !/guest/.test(await frame.content().catch(() => '')), 'it was framed')
	assert.equal((await status()).state, 'lent')
	// By another name for this address (as after a rebinding of DNS): refused as well.
	const named = await new Promise((resolve) => http.get({ host: '127.0.0.1', port: new URL(url).port, path: '/v1/owner', headers: { host: 'evil.example' } }, (r) => resolve(r.statusCode)))
	assert.equal(named, 403)
	await evil.close()
	server.close()
})

await test('a page of one user needs the secret of its address', async () => {
	const bare = await browser.newPage()
	await bare.goto(secret.replace(/#.*/, ''))
	await is(bare, 'refused')
	assert.match(await bare.textContent('#about'), /it has a secret at its end/)
	await shot(bare, '6-no-secret')
	await bare.goto('about:blank')
	await bare.goto(secret)
	await is(bare, 'lent')
	await bare.close()
})

await test('with the agent dead the button still works', async () => {
	assert.match(await page.textContent('#state'), /^1 guest/)
	await run('reclaim', 'lab', 'do', JSON.stringify({ do: 'crash', what: 'agent', machines: [machine] }))
	await is(page, 'silent')
	await page.click('#back')
	await until(async () => /1 guest\(s\) were told by their supervisors/.test(await page.evaluate(() => document.body.textContent)), 10000, 'its words')
	await shot(page, '7-agent-dead')
	await run('reclaim', 'lab', 'do', JSON.stringify({ do: 'restart', what: 'agent', machines: [machine] }))
	await is(page, 'owned', 30000)
})

await test('on a phone', async () => {
	const context = await browser.newContext({ viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true })
	const small = await context.newPage()
	await small.goto(url)
	await is(small, 'owned')
	assert.ok(await small.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'it fits the width')
	await shot(small, '8-phone')
	await context.close()
})

assert.deepEqual(errors, [])
await browser.close()
process.exit(failed ? 1 : 0)
