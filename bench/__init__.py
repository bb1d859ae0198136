"""Benches: what the service costs and how fast it is, on a server of their own, beside what it is compared with.

    python -m bench                               the list
    python -m bench drain --against pg-boss       one of them; --json: all figures; --chart FILE: drawn
    python -m bench all                           the suite, and docs/benchmarks.md made of it (make bench)

drain      a backlog of no-op jobs          lanes     many queues, priorities
latency    commit to handler start          blocked   jobs in front that may not run
enqueue    singly, in bulk, many writers    scale     1-64 workers
pinned     under an old snapshot            idle      a node with nothing to do
backlog    at the head of a long queue      memory    beyond shared pages, over many jobs
history    beside a long history            lab       500 jobs, one of them slow
crash, shutdown, outbox, sustained          suite.py  all of them; suite.toml, benchmarks.md.in: its texts

stats.py   medians and spread               machine.py   what the figures were measured on
server.py  a PostgreSQL with fsync on       service.py   `supervisor run` as a process tree
ground.py  server, databases, turns         emptying.py  the rate at which a service works
peers/     bare loops and other queues      pgbench.py   plain SQL to compare with
report.py, chart.py  what comes out         jobs.py      the handlers that are run
care.py    partitions and indexes, renewed under load

To add one: a module with HELP, `arguments(parser)` and `run(options, say) -> Report`, named in __main__.py and
suite.toml, and a tiny run of it in tests/bench.

Always true: a figure is the median of rounds, with its lowest and highest; what a throughput is compared with runs
in the same run, in turns with it; the machine and the server's settings are printed beside it.
"""
