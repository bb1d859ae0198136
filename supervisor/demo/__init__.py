"""The lab of the founding article, run through the real service: `supervisor demo`.

    lab.py      the whole: schema, service, five steps, report
    steps.py    what each step does, and what its figures must be; step 4 is deaths.py
    ground.py   sizes and settings, and waiting for facts
    process.py  the service as a subprocess, its log read as events
    figures.py  expected and measured
    screen.py   what is shown meanwhile

Always true: what is said of jobs is read from the database and from the handlers' own count, never from
what the service says of itself. Nothing of the demo is left behind.
"""
