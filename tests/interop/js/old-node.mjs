// What js-libp2p's packages expect of Node.js, and Debian 12's (18) has not.
import { webcrypto } from 'node:crypto'

Promise.withResolvers ??= function () {
  let resolve, reject
  const promise = new Promise((a, b) => { resolve = a; reject = b })
  return { promise, resolve, reject }
}
globalThis.crypto ??= webcrypto
globalThis.CustomEvent ??= class extends Event {
  constructor (name, options = {}) {
    super(name, options)
    this.detail = options.detail ?? null
  }
}
