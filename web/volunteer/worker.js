// SPDX-License-Identifier: Apache-2.0
// Computes values with the function of the map: a JavaScript module whose default export is
// applied to each value, or a WebAssembly file with memory, alloc(len) and apply(ptr, len).
// Nothing of the page can be reached from here.

let apply

function toBytes(result) {
	if (result instanceof Uint8Array) return result
	if (result instanceof ArrayBuffer) return new Uint8Array(result)
	return new TextEncoder().encode(typeof result === 'string' ? result : JSON.stringify(result) ?? '')
}

async function gpuDevice() {
	try {
		const adapter = await navigator.gpu?.requestAdapter()
		return (await adapter?.requestDevice()) ?? null
	} catch {
		return null // no graphics card that can be used: the function computes without
	}
}

async function loadModule(bytes) {
	const url = URL.createObjectURL(new Blob([bytes], { type: 'text/javascript' }))
	try {
		const module = await import(url)
		if (typeof module.default !== 'function') throw new Error('the module has no default function')
		const context = { gpu: module.gpu ? await gpuDevice() : null }
		return async (value) => toBytes(await module.default(module.binary ? value : new TextDecoder().decode(value), context))
	} finally {
		URL.revokeObjectURL(url)
	}
}

async function loadWasm(bytes) {
	const module = await WebAssembly.compile(bytes)
	const imports = {}
	for (const i of WebAssembly.Module.imports(module)) {
		if (i.kind !== 'function' || i.module !== 'wasi_snapshot_preview1')
			throw new Error(`the file wants ${i.module}.${i.name}, which no volunteer gives`)
		imports[i.module] ??= {}
		imports[i.module][i.name] = () => 52
	}
	// A fresh instance for each value: what one value leaves behind must not reach the next.
	return async (value) => {
		const { exports: e } = await WebAssembly.instantiate(module, imports)
		e._initialize?.()
		const at = e.alloc(value.length)
		new Uint8Array(e.memory.buffer, at, value.length).set(value)
		const packed = BigInt.asUintN(64, e.apply(at, value.length))
		if (packed === 0n) throw new Error('the function failed')
		return new Uint8Array(e.memory.buffer, Number(packed >> 32n), Number(packed & 0xffffffffn)).slice()
	}
}

onmessage = async ({ data }) => {
	if (data.kind) {
		try {
			apply = await (data.kind === 'wasm' ? loadWasm : loadModule)(data.bytes)
			postMessage({ ready: true })
		} catch (e) {
			postMessage({ broken: String(e?.message ?? e) })
		}
		return
	}
	const started = performance.now()
	let failed = false, bytes
	try {
		bytes = await apply(data.bytes)
	} catch (e) {
		failed = true
		bytes = new TextEncoder().encode(String(e?.message ?? e).slice(0, 500))
	}
	postMessage({ value: data.value, failed, bytes, took: performance.now() - started })
}
