// SPDX-License-Identifier: Apache-2.0
// One WebRTC data channel, with one bundled offer and one answer (no trickle).

const GATHER_MS = 1500

function gathered(pc) {
	if (pc.iceGatheringState === 'complete') return Promise.resolve()
	return new Promise((resolve) => {
		const timer = setTimeout(resolve, GATHER_MS) // what was found until then must do
		pc.addEventListener('icegatheringstatechange', () => {
			if (pc.iceGatheringState !== 'complete') return
			clearTimeout(timer)
			resolve()
		})
	})
}

export class Channel {
	// on: { open(), message(bytes), closed(why) }
	constructor(iceServers, on) {
		this.on = on
		this.over = false
		this.pc = new RTCPeerConnection({ iceServers: iceServers ?? [] })
		this.pc.addEventListener('connectionstatechange', () => {
			if (['failed', 'closed'].includes(this.pc.connectionState)) this.end(`connection ${this.pc.connectionState}`)
		})
	}

	attach(dc) {
		this.dc = dc
		dc.binaryType = 'arraybuffer'
		const open = () => { if (!this.over && !this.opened) { this.opened = true; this.on.open() } }
		dc.addEventListener('open', open)
		dc.addEventListener('message', (e) => { if (!this.over && e.data instanceof ArrayBuffer) this.on.message(new Uint8Array(e.data)) })
		dc.addEventListener('close', () => this.end('the other end closed the channel'))
		if (dc.readyState === 'open') open()
	}

	async offer() {
		this.attach(this.pc.createDataChannel('reclaim'))
		await this.pc.setLocalDescription(await this.pc.createOffer())
		await gathered(this.pc)
		return this.pc.localDescription.sdp
	}

	async answer(sdp) {
		this.pc.addEventListener('datachannel', (e) => { if (!this.dc) this.attach(e.channel) })
		await this.pc.setRemoteDescription({ type: 'offer', sdp })
		await this.pc.setLocalDescription(await this.pc.createAnswer())
		await gathered(this.pc)
		return this.pc.localDescription.sdp
	}

	async accept(sdp) {
		if (this.pc.signalingState === 'have-local-offer') await this.pc.setRemoteDescription({ type: 'answer', sdp })
	}

	send(bytes) {
		if (this.dc?.readyState === 'open') this.dc.send(bytes)
	}

	// Ends without telling the owner.
	close() {
		this.over = true
		this.dc?.close()
		this.pc.close()
	}

	end(why) {
		if (this.over) return
		this.close()
		this.on.closed(why)
	}
}
