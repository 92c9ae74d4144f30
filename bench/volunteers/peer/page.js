// SPDX-License-Identifier: Apache-2.0
// A page of the original overlay (bundled by browserify): join, say hello until somebody answers.
const Bootstrap = require('webrtc-bootstrap/src/client')
const Node = require('webrtc-tree-overlay')

window.start = (host, root) => {
	const node = window.node = new Node(new Bootstrap(host), { maxDegree: 10, peerOpts: { config: { iceServers: [] } } }) // its default server's address is not valid any more
	window.connected = false
	node.on('child-connect', (channel) => channel.on('data', () => channel.send('answer')))
	if (root) return void node.becomeRoot('secret')
	node.on('parent-connect', (channel) => {
		channel.on('data', () => { window.connected = true })
		const again = setInterval(() => (window.connected ? clearInterval(again) : channel.send('hello')), 100)
		channel.send('hello')
	})
	node.join()
}
