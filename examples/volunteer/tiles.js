// SPDX-License-Identifier: Apache-2.0
// A ray tracer by tiles: value i is tile i of an image of SIDE x SIDE pixels, row by row, TILE
// pixels wide and high. The result is the tile's pixels, three bytes each; join.py puts a
// folder of tiles (reclaim map --out) together. Every browser gives the same bytes.

export const SIDE = 256, TILE = 32
export const binary = false

const spheres = [
	{ at: [0, -1000, 0], r: 999, color: [0.55, 0.6, 0.5], mirror: 0.05 },
	{ at: [-1.1, 0, 4], r: 1, color: [0.85, 0.3, 0.2], mirror: 0.2 },
	{ at: [1.1, 0, 4.4], r: 1, color: [0.2, 0.45, 0.85], mirror: 0.35 },
	{ at: [0, 1.3, 5.4], r: 1, color: [0.95, 0.8, 0.3], mirror: 0.5 },
	{ at: [0, -0.6, 2.6], r: 0.4, color: [0.9, 0.9, 0.9], mirror: 0.7 },
]
const light = unit([-0.6, 0.9, -0.5])

function dot(a, b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] }
function add(a, b, k = 1) { return [a[0] + k * b[0], a[1] + k * b[1], a[2] + k * b[2]] }
function unit(a) { const l = Math.sqrt(dot(a, a)); return [a[0] / l, a[1] / l, a[2] / l] }

function hit(from, dir, least) {
	let best = null, t = Infinity
	for (const s of spheres) {
		const o = add(from, s.at, -1), b = dot(o, dir), c = dot(o, o) - s.r * s.r, d = b * b - c
		if (d < 0) continue
		const root = Math.sqrt(d), near = -b - root > least ? -b - root : -b + root
		if (near > least && near < t) { t = near; best = s }
	}
	return best && { sphere: best, t }
}

function trace(from, dir, depth) {
	const h = hit(from, dir, 1e-4)
	if (!h) {
		const k = 0.5 * (dir[1] + 1)
		return [0.95 - 0.45 * k, 0.97 - 0.25 * k, 1]
	}
	const p = add(from, dir, h.t), n = unit(add(p, h.sphere.at, -1))
	const lit = hit(p, light, 1e-3) ? 0 : Math.max(0, dot(n, light))
	const shade = 0.18 + 0.82 * lit
	let color = h.sphere.color.map((c) => c * shade)
	if (depth > 0 && h.sphere.mirror > 0) {
		const seen = trace(p, add(dir, n, -2 * dot(dir, n)), depth - 1)
		color = color.map((c, i) => c * (1 - h.sphere.mirror) + seen[i] * h.sphere.mirror)
	}
	return color
}

export default function (value) {
	const i = Number(value), across = SIDE / TILE
	if (!Number.isInteger(i) || i < 0 || i >= across * across) throw new Error(`there is no tile ${value}`)
	const x0 = (i % across) * TILE, y0 = Math.floor(i / across) * TILE, grid = 3
	const out = new Uint8Array(TILE * TILE * 3)
	for (let y = 0; y < TILE; y++) {
		for (let x = 0; x < TILE; x++) {
			let sum = [0, 0, 0]
			for (let k = 0; k < grid * grid; k++) {
				const u = (x0 + x + (k % grid + 0.5) / grid) / SIDE * 2 - 1
				const v = 1 - (y0 + y + (Math.floor(k / grid) + 0.5) / grid) / SIDE * 2
				sum = add(sum, trace([0, 0.4, -1], unit([u, v, 1.6]), 4))
			}
			for (let c = 0; c < 3; c++)
				out[(y * TILE + x) * 3 + c] = Math.min(255, Math.floor(255 * Math.sqrt(sum[c] / (grid * grid))))
		}
	}
	return out
}
