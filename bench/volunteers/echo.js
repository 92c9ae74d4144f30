// SPDX-License-Identifier: Apache-2.0
// A function that costs nothing: what is measured is the overlay.
export default async (value) => { await new Promise((r) => setTimeout(r, 100)); return value }
