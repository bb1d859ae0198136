"""Other queues, and the bare loops, run beside the service on the same server: `--against NAME,...`.

    registry.py  who there is, and what each needs     env.py    an environment for each, made on demand
    crew.py      a peer's processes, seen from here    shell.py  what all Python programs of peers share
    bare.py      claim + delete by asyncpg, LISTEN     shell.mjs the same for Node
    plain.py     inserts into a table without trigger  own.py    the service's own producer
    pgqueuer.py, procrastinate.py, oban.py, graphile.mjs, pgboss.mjs

A peer is one program with five commands, run in the peer's own environment:

    setup URL                      its tables
    fill URL N [CALLS]             N jobs by one bulk call, CALLS times over -> {"seconds": ...}
    single URL N                   N jobs, one commit each                   -> {"seconds": ...}
    produce URL N LEAST MOST       N jobs, pauses of so many ms before each  -> {"sent": [ns when its commit returned]}
    work URL CONCURRENCY MODE      {"ready": true}, waits for a line, works until it is killed; in mode `drain`
                                   {"done", "first", "last"} as it goes on, in mode `latency` {"n", "at"} per job

Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share. Jobs do nothing; they carry
{"n": number, "note": 100 characters}, and take n as their mark. Each peer has the settings its documentation names
for throughput; where these cost latency, `latency` runs it with those for latency, as `work` is told by its mode.

Always true: connections, preparation and imports are not timed. What a peer's time begins with is its first handler's
start, and ends with its last one: its last acknowledgement is given to it.
"""
