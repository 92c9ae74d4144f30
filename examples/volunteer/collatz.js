// SPDX-License-Identifier: Apache-2.0
// The longest Collatz chain that starts in one block of numbers: value i is the block of SIZE
// numbers after i * SIZE. Prints "start steps". On a graphics card where pages have one.

const SIZE = 200000

export const gpu = true

function onCore(first) {
	let best = 0, bestSteps = -1
	for (let n = first; n < first + SIZE; n++) {
		let x = n, steps = 0
		// Numbers stay below 2^53 for starts below 2^40: doubles are exact.
		while (x !== 1) {
			x = x % 2 === 0 ? x / 2 : (3 * x + 1) / 2 // an odd step and the even one after it
			steps++
		}
		if (steps > bestSteps) { best = n; bestSteps = steps }
	}
	return [best, bestSteps]
}

// 64-bit numbers as two 32-bit halves; a chain that leaves 64 bits is left to the core.
const KERNEL = `
@group(0) @binding(0) var<storage, read_write> steps: array<u32>;
@group(0) @binding(1) var<uniform> first: vec2<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
	if (id.x >= arrayLength(&steps)) { return; }
	var lo = first.x + id.x;
	var hi = first.y + select(0u, 1u, lo < first.x);
	var n = 0u;
	loop {
		if (hi == 0u && lo == 1u) { break; }
		if ((lo & 1u) == 0u) {
			lo = (lo >> 1u) | (hi << 31u);
			hi = hi >> 1u;
		} else {
			// (3x + 1) / 2 = x + (x + 1) / 2 for odd x
			if (hi > 0x3fffffffu) { n = 0xffffffffu; break; }
			let half_lo = (lo >> 1u) | (hi << 31u);
			let half_hi = hi >> 1u;
			let sum = lo + half_lo;
			var carry = select(0u, 1u, sum < lo);
			lo = sum + 1u;
			if (lo == 0u) { carry = carry + 1u; }
			hi = hi + half_hi + carry;
		}
		n = n + 1u;
	}
	steps[id.x] = n;
}`

let pipeline

async function onGpu(device, first) {
	pipeline ??= device.createComputePipeline({ layout: 'auto',
		compute: { module: device.createShaderModule({ code: KERNEL }), entryPoint: 'main' } })
	const bytes = SIZE * 4
	const steps = device.createBuffer({ size: bytes, usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC })
	const read = device.createBuffer({ size: bytes, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ })
	const start = device.createBuffer({ size: 8, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST })
	device.queue.writeBuffer(start, 0, new Uint32Array([first % 2 ** 32, Math.floor(first / 2 ** 32)]))
	const bind = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries: [
		{ binding: 0, resource: { buffer: steps } }, { binding: 1, resource: { buffer: start } }] })
	const encoder = device.createCommandEncoder(), pass = encoder.beginComputePass()
	pass.setPipeline(pipeline)
	pass.setBindGroup(0, bind)
	pass.dispatchWorkgroups(Math.ceil(SIZE / 64))
	pass.end()
	encoder.copyBufferToBuffer(steps, 0, read, 0, bytes)
	device.queue.submit([encoder.finish()])
	await read.mapAsync(GPUMapMode.READ)
	const all = new Uint32Array(read.getMappedRange())
	let best = 0
	for (let i = 0; i < SIZE; i++) {
		if (all[i] === 0xffffffff) return onCore(first)
		if (all[i] > all[best]) best = i
	}
	const result = [first + best, all[best]]
	for (const b of [steps, read, start]) b.destroy()
	return result
}

export default async function (value, { gpu: device }) {
	const i = Number(value)
	if (!Number.isInteger(i) || i < 0 || i * SIZE > 2 ** 40) throw new Error(`"${value}" is not a block`)
	const first = i * SIZE + 1
	const [start, steps] = device ? await onGpu(device, first) : onCore(first)
	return `${start} ${steps}`
}
