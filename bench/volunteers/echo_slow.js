// SPDX-License-Identifier: Apache-2.0
// The first value at once, later ones after two seconds: what is measured is joining, not the echo.
let first = true
export default async (value) => {
	if (!first) await new Promise((r) => setTimeout(r, 2000))
	first = false
	return value
}
