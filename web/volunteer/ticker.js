// SPDX-License-Identifier: Apache-2.0
// Timers of a page in the background are slowed down; those of a worker are not.
setInterval(() => postMessage(0), 250)
