// pg-boss: batches, fetched on while they come back full; woken by LISTEN.

import { NOTE, main, peer } from './shell.mjs'

const { PgBoss } = peer('pg-boss')
const QUEUE = 'noop'

async function started (url, max, options = {}) {
  const boss = new PgBoss({ connectionString: url, max, useListenNotify: true, ...options })
  boss.on('error', (error) => console.error(error))
  await boss.start()
  return boss
}

main({
  async setup (url) {
    const boss = await started(url, 2)
    await boss.createQueue(QUEUE, { notify: true })
    await boss.stop({ graceful: false })
  },

  async producer (url) {
    const boss = await started(url, 1, { supervise: false, schedule: false })
    return {
      one: (n) => boss.send(QUEUE, { n, note: NOTE }),
      many: (count) => boss.insert(QUEUE, Array.from({ length: count }, (_, n) => ({ data: { n, note: NOTE } })))
    }
  },

  async work (url, concurrency, clock) {
    const boss = await started(url, 4)
    const options = clock.latency
      ? { batchSize: 1, localConcurrency: 1, pollingIntervalSeconds: 0.5 }
      : { batchSize: concurrency, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
    const handler = async (jobs) => { for (const { data } of jobs) clock.seen(data.n) }
    if (clock.latency) {
      await boss.work(QUEUE, options, handler)
      await clock.go()
    } else {
      await clock.go()
      await boss.work(QUEUE, options, handler)
    }
  }
})
