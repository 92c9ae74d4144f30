// SPDX-License-Identifier: Apache-2.0
// A hundred values a second, each of which costs nothing.
export default async (value) => { await new Promise((r) => setTimeout(r, 10)); return value }
