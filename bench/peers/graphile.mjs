// graphile-worker: batches by its local queue and batched completion, as its page on performance says.

import { NOTE, main, peer } from './shell.mjs'

const { makeWorkerUtils, run, Logger } = peer('graphile-worker')
const quiet = new Logger(() => () => {})

main({
  async setup (url) {
    const utils = await makeWorkerUtils({ connectionString: url, logger: quiet })
    await utils.migrate()
    await utils.release()
  },

  async producer (url) {
    const utils = await makeWorkerUtils({ connectionString: url, logger: quiet, maxPoolSize: 1 })
    return {
      one: (n) => utils.addJob('noop', { n, note: NOTE }),
      many: (count) => utils.addJobs(
        Array.from({ length: count }, (_, n) => ({ identifier: 'noop', payload: { n, note: NOTE } })))
    }
  },

  async work (url, concurrency, clock) {
    // Imports and a first connection; its workers look for jobs as soon as they are started.
    const utils = await makeWorkerUtils({ connectionString: url, logger: quiet })
    await utils.withPgClient((client) => client.query('select 1'))
    const throughput = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }
    const options = {
      connectionString: url,
      logger: quiet,
      noHandleSignals: true,
      taskList: { noop: async ({ n }) => { clock.seen(n) } },
      preset: { worker: { concurrentJobs: concurrency, maxPoolSize: 10, ...(clock.latency ? {} : throughput) } }
    }
    if (clock.latency) {
      await run(options)
      await clock.go()
    } else {
      await clock.go()
      await run(options)
    }
  }
})
