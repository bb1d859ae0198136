"""Chaos: a real service under load while everything around it fails, and a checker that was not there.

    python -m tests.chaos --seconds 60 --seed 7          (make chaos)

    load.py      enqueues, in transactions that commit late or roll back
    keys.py      a fifth of the jobs has keys or parents: order, limits, rates; whether they were kept
    handlers.py  jobs that write what they did into a table without a unique index
    world.py     the server, a proxy per supervisor, two supervisors
    disk.py      a file system for the database that can be filled
    faults.py    what is done to them; each fault is a class
    checker.py   compares jobs, effects, attempts, crashes and the log afterwards: the verdict

The seed decides which fault comes when and how hard. What the machine makes of it differs from run to
run; a run that fails is said with its seed, its faults and the rows in question.
"""
