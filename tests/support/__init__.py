"""What the tests share.

servers.py    real PostgreSQL servers (15, 16, 18), started by the tests themselves
database.py   a database of its own for each test
service.py    the supervisor as a real process tree, with its log read as events
jobs.py       enqueue jobs, ask what became of them
health.py     watch a service's health page, and how long it was silent
handlers.py   the kinds those services run; their effects go to a table
receiver.py   an HTTP server for webhooks
proc.py       facts about processes, from /proc
waiting.py    wait for a fact, with a deadline
"""
