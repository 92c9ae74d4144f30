// SPDX-License-Identifier: Apache-2.0
// What people see and press.
import { Volunteer, warmUp } from './volunteer.js'

const $ = (id) => document.getElementById(id)
const invite = location.hash.slice(1)
const options = new URLSearchParams(location.search)
const most = Math.max(1, navigator.hardwareConcurrency || 1)

const words = {
	idle: 'Not started.',
	connecting: 'Connecting …',
	joining: 'Finding a place …',
	connected: 'Helping.',
	repairing: 'A neighbour left; finding another. The computing goes on.',
	relayed: 'Helping, without a direct channel: everything goes through the master.',
	paused: 'Paused. Press again to go on.',
	waiting: 'Waiting for the master …',
	left: 'You have left. Thank you!',
	done: 'All done. Thank you!',
	refused: 'Not admitted.',
	error: 'This does not work here.',
}

let volunteer, warm = warmUp()
let rateFrom = { done: 0, at: 0, text: '–' }

function rate() {
	const now = performance.now()
	if (now - rateFrom.at > 2000) {
		const perSecond = (volunteer.done - rateFrom.done) * 1000 / (now - rateFrom.at)
		rateFrom = { done: volunteer.done, at: now, text: perSecond >= 10 ? `${perSecond.toFixed(0)} a second` : `${(perSecond * 60).toFixed(0)} a minute` }
	}
	return rateFrom.text
}

function draw(stats) {
	const canvas = $('tree'), c = canvas.getContext('2d')
	const style = getComputedStyle(document.documentElement)
	const color = (name) => style.getPropertyValue(name).trim()
	const w = canvas.width, h = canvas.height
	const dot = (x, y, r, fill) => { c.beginPath(); c.arc(x, y, r, 0, 7); c.fillStyle = fill; c.fill() }
	const line = (x0, y0, x1, y1) => { c.beginPath(); c.moveTo(x0, y0); c.lineTo(x1, y1); c.stroke() }
	c.clearRect(0, 0, w, h)
	c.strokeStyle = color('--line')
	c.lineWidth = 3
	c.font = '15px system-ui'
	c.textAlign = 'center'
	const depth = stats?.depth ?? 0, children = stats?.children ?? 0
	const steps = Math.max(1, depth), top = 28, mine = 100, y = (i) => top + (mine - top) * i / steps
	for (let i = 0; i < steps; i++) if (depth || stats) line(w / 2, y(i), w / 2, y(i + 1))
	for (let i = 0; i < children; i++) line(w / 2, mine, w / 2 + (i - (children - 1) / 2) * Math.min(56, (w - 60) / children), 168)
	dot(w / 2, top, 15, color('--ink'))
	for (let i = 1; i < steps; i++) dot(w / 2, y(i), 8, color('--soft'))
	const busy = volunteer?.workers.filter((x) => x.value !== undefined).length ?? 0
	dot(w / 2, mine, 20, stats ? color(volunteer.paused ? '--soft' : '--go') : color('--line'))
	for (let i = 0; i < children; i++) dot(w / 2 + (i - (children - 1) / 2) * Math.min(56, (w - 60) / children), 168, 9, color('--soft'))
	c.fillStyle = color('--soft')
	c.textAlign = 'left'
	c.fillText('who asks', w / 2 + 26, top + 5)
	c.fillText(stats ? `you, ${busy} of ${volunteer.cores} core${volunteer.cores > 1 ? 's' : ''} at work` : 'you', w / 2 + 30, mine + 5)
	if (children) c.fillText(`${children} more through you`, 12, 192)
}

function show() {
	const v = volunteer, stats = v?.node?.stats()
	const state = v?.state ?? 'idle'
	$('status').dataset.state = state
	$('status').textContent = words[state] + (v?.detail && state !== 'connected' ? ` ${v.detail}` : '')
	const running = v && !v.over
	$('go').hidden = !!running
	$('go').disabled = !invite
	$('pause').disabled = $('leave').disabled = !running
	$('pause').textContent = v?.paused ? 'Go on' : 'Pause'
	if (v?.job) {
		$('title').textContent = v.job.title ?? 'Lend a hand'
		$('what').textContent = v.job.function?.name ?? '–'
		$('whom').textContent = v.job.owner ?? '–'
	}
	$('done').textContent = v ? String(v.done) : '0'
	$('rate').textContent = v ? rate() : '–'
	$('via').textContent = !running ? '–' : stats?.attached ? `direct, step ${stats.depth}${stats.children ? `, ${stats.children} through you` : ''}` : state === 'relayed' ? 'through the master' : '–'
	draw(running ? stats : undefined)
}

// Much happens at once when a tree forms: one picture for all of it.
let planned = false
function showSoon() {
	if (planned) return
	planned = true
	setTimeout(() => { planned = false; show() }, 150)
}

async function nameGpu() {
	let text = 'none for pages'
	try {
		const adapter = await navigator.gpu?.requestAdapter()
		if (adapter) text = adapter.info?.description || adapter.info?.vendor || 'yes'
	} catch {
		text = 'none for pages'
	}
	$('gpu').textContent = text
}

function go() {
	volunteer = new Volunteer({ invite, cores: Number($('cores').value), direct: !options.has('relay'), warm: warm ?? warmUp() })
	warm = undefined
	rateFrom = { done: 0, at: performance.now(), text: '–' }
	volunteer.addEventListener('change', showSoon)
	window.volunteer = volunteer // for the curious, and for tests
	volunteer.start()
}

$('cores').max = most
$('cores').value = Math.max(1, Math.min(Number(options.get('cores')) || Math.ceil(most / 2), most))
$('cores-out').value = $('cores').value
$('cores').addEventListener('input', () => {
	$('cores-out').value = $('cores').value
	volunteer?.setCores(Number($('cores').value))
	show()
})
$('go').addEventListener('click', go)
$('pause').addEventListener('click', () => { volunteer.setPaused(!volunteer.paused); show() })
$('leave').addEventListener('click', () => { volunteer.stop(); show() })
setInterval(() => { if (volunteer && !volunteer.over) show() }, 500)
show()
nameGpu()
if (!invite) {
	$('status').dataset.state = 'error'
	$('status').textContent = 'The address has no invitation at its end (#…): ask whoever sent it.'
} else if (options.has('auto')) {
	go()
}
