// What the Node programs of peers share: their commands, the clock, what they print. See __init__.py.

import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'

export const NOTE = 'x'.repeat(100)
const TELL_EVERY_MS = 50

// A peer's packages are in its own folder, not beside this file.
export const peer = createRequire(process.env.PEER_HOME + '/')

const now = () => Number(process.hrtime.bigint())
const tell = (found) => process.stdout.write(JSON.stringify(found) + '\n')

// What a worker tells of its runs.
class Clock {
  constructor (mode) {
    this.latency = mode === 'latency'
    this.done = this.first = this.last = 0
  }

  // Say that everything is ready, and wait for the word to begin.
  async go () {
    const lines = createInterface({ input: process.stdin })
    const word = new Promise((resolve) => lines.once('line', resolve))
    tell({ ready: true })
    await word
    if (this.latency) return
    let told = 0
    setInterval(() => {
      if (this.done !== told) {
        told = this.done
        tell({ done: this.done, first: this.first, last: this.last })
      }
    }, TELL_EVERY_MS)
  }

  // A handler of job n has started.
  seen (n) {
    const at = now()
    if (this.latency) return tell({ n, at })
    this.done++
    this.first ||= at
    this.last = at
  }
}

export async function main (program) {
  const [command, url, ...words] = process.argv.slice(2)
  if (command === 'setup') {
    await program.setup(url)
    process.exit(0)
  }
  if (command === 'work') return program.work(url, Number(words[0]), new Clock(words[1]))
  const producer = await program.producer(url)
  const [count, ...rest] = words.map(Number)
  if (command === 'fill') {
    const began = now()
    for (let call = 0; call < (rest[0] ?? 1); call++) await producer.many(count)
    tell({ seconds: (now() - began) / 1e9 })
  } else if (command === 'single') {
    await producer.one(0)
    const began = now()
    for (let n = 0; n < count; n++) await producer.one(n)
    tell({ seconds: (now() - began) / 1e9 })
  } else if (command === 'produce') {
    const sent = []
    for (let n = 0; n < count; n++) {
      await sleep(rest[0] + Math.random() * (rest[1] - rest[0]))
      await producer.one(n)
      sent.push(now())
    }
    tell({ sent })
  } else {
    throw new Error(`no such command: ${command}`)
  }
  process.exit(0)
}
