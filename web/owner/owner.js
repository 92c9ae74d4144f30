// SPDX-License-Identifier: Apache-2.0
// The owner's page: who is here, until when, one button to take the machine back, one to cut. It asks
// once a second; all words come in as text, never as markup.
const $ = (id) => document.getElementById(id)
const token = location.hash.slice(1)
let busy = false, last

export function span(ms) {
	const s = Math.round(ms / 1000)
	if (s < 120) return `${s} s`
	if (s < 7200) return `${Math.round(s / 60)} min`
	return `${(s / 3600).toFixed(1)} h`
}

async function ask(method, path) {
	const r = await fetch(`${path}?token=${encodeURIComponent(token)}`, { method, cache: 'no-store', body: method === 'POST' ? '{}' : undefined })
	const body = await r.json().catch(() => ({}))
	if (r.status === 403) throw Object.assign(new Error(body.error?.what ?? ''), { refused: true })
	if (!r.ok) throw new Error(body.error?.what ?? r.statusText)
	return body
}

function show(id, on, text) {
	$(id).hidden = !on
	if (text !== undefined) $(id).textContent = text
}

const WHY = { login: 'somebody logged in', keyboard: 'somebody is at the keyboard', gpu: 'you use the GPU', cpu: 'you use the processor',
	shutdown: 'it is shutting down', suspend: 'it is going to sleep', lid: 'the lid was closed', schedule: 'its weekly schedule says so' }

function words(s) {
	const n = s.guests?.length ?? 0, window = span(+s.window_ms)
	switch (s.state) {
	case 'owned': return ['It is yours', s.lends ? `Lent again ${s.lends}.` : 'Nobody else runs here.']
	case 'free': return ['It is yours', 'Nobody else runs here.']
	case 'lent': return n ? [`${n} guest${n > 1 ? 's' : ''} here`, `Lent${s.paused ? ', paused' : ''}. Taking it back takes ${window} at most.`]
		: ['Lent, nobody here', s.paused ? 'Paused: nobody new comes.' : 'Somebody may come.']
	case 'notice': return [`Yours in ${span(+s.remaining_ms)}`, `${n ? 'Guests save their work and leave' : 'The last work is being moved'}${WHY[s.reason] ? `: ${WHY[s.reason]}` : ''}.`]
	case 'draining': return ['Ending the guests', 'Their packets are cut; what is left is being ended.']
	}
	return [s.state, '']
}

function fate(s, g) {
	if (g.moved) return `moved to ${g.to}`
	if (g.to) return `${g.saved ? 'saved, ' : ''}moving to ${g.to}`
	if (g.saved) return 'saved'
	return s.state === 'notice' ? 'saving' : 'computing'
}

function render(s) {
	last = s
	document.body.dataset.state = s.state
	$('node').textContent = s.node
	const [state, about] = words(s), n = s.guests?.length ?? 0
	$('state').textContent = state
	$('about').textContent = about
	show('alarm', !!s.alarm, s.alarm ?? '')
	show('actions', true)
	const mine = s.state === 'owned' || s.state === 'free'
	show('back', s.state === 'lent')
	show('cut', !mine && s.state !== 'draining')
	show('cancel', s.state === 'notice')
	show('lend', mine && !s.lends)
	$('explain').textContent = mine ? '' : `Take it back: guests get ${span(+s.window_ms)} to save and leave. Cut: their packets stop at once, they are ended, and lose what they had not saved.`
	show('who', n > 0)
	$('guests').replaceChildren(...(s.guests ?? []).map((g) => {
		const tr = document.createElement('tr')
		for (const text of [g.user, g.name || g.job, span(+g.ran_ms), fate(s, g)]) {
			const td = document.createElement('td')
			td.textContent = text
			tr.append(td)
		}
		return tr
	}))
	const notes = [...s.coordinator_up ? [] : ['The coordinator is not in reach. Your buttons work all the same.'],
		...s.schedule ? [`Schedule: ${s.schedule}.`] : [], ...(s.lacks ?? []).map((l) => `Without ${l}.`)]
	show('notes', notes.length > 0)
	$('lacks').replaceChildren(...notes.map((t) => Object.assign(document.createElement('li'), { textContent: t })))
}

function broken(e) {
	document.body.dataset.state = e.refused ? 'refused' : 'silent'
	$('state').textContent = e.refused ? 'Not yours to manage' : 'No answer'
	$('about').textContent = e.refused ? e.message : `${e.message || 'The agent or this page\'s server has stopped.'} Your buttons still work through the guests' supervisors, if this page's server runs.`
	for (const id of ['alarm', 'who', 'notes', 'cancel', 'lend']) show(id, false)
	show('actions', !e.refused)
	show('back', !e.refused)
	show('cut', !e.refused)
}

async function look() {
	if (busy) return
	try { render(await ask('GET', '/v1/owner')) } catch (e) { broken(e) }
}

async function act(path) {
	busy = true
	for (const b of document.querySelectorAll('button')) b.disabled = true
	try {
		const s = await ask('POST', path)
		if (s.state) render(s)
		if (s.said) $('about').textContent = s.said
		if (s.error) show('alarm', true, s.error)
	} catch (e) {
		broken(e)
	}
	busy = false
	for (const b of document.querySelectorAll('button')) b.disabled = false
}

if (window.top === window) {
	$('back').onclick = () => act('/v1/owner/back')
	$('cut').onclick = () => act('/v1/owner/cut')
	$('cancel').onclick = () => act('/v1/owner/cancel')
	$('lend').onclick = () => act('/v1/owner/lend')
	look()
	setInterval(look, 1000)
}
