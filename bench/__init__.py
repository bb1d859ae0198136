"""Benches: what the service costs and how fast it is, on a server of their own.

    python -m bench                 the list
    python -m bench drain --json    one of them, figures as JSON

stats.py      medians and spread          machine.py    what the figures were measured on
server.py     a PostgreSQL with fsync on  service.py    `supervisor run` as a process tree
pgbench.py    plain SQL to compare with   jobs.py       the handlers that are run
drain.py      how fast a backlog empties
crash.py      how soon a killed worker's jobs are queued again

To add one: a module with HELP, `arguments(parser)` and `run(options, say) -> Report`, named in __main__.py.

Always true: a figure is the median of rounds, with its lowest and highest; what a throughput is compared with runs
in the same run, in turns with it; the machine and the server's settings are printed beside it.
"""
