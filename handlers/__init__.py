"""Your jobs: every module in this folder is imported by the service, and its handlers run.

To add a job, add a file here:

    # handlers/welcome.py
    from supervisor import Job, handler

    @handler("email.welcome", queue="email", max_attempts=5, timeout=30)
    async def send_welcome(user_id: int, lang: str = "en") -> None:
        ...

and enqueue it where its data is written, in the same transaction:

    async with pool.connection() as conn:
        await create_user(conn, ...)
        await send_welcome.enqueue(conn, user_id=7)

`async def` runs on the worker's event loop and must not block it; a plain `def` runs in a thread.
Raise nothing and the job is done; raise Retry, Snooze or Cancel to say more; anything else is a failed
attempt, tried again later. A job runs at least once: what must not happen twice goes into
`job.transaction()` (report.py) or carries the job's id to whoever can tell a repetition (webhook.py).

What is here to copy from:
    webhook.py    a signed webhook over HTTP: timeouts, Retry-After, what is worth another attempt
    report.py     a report from database rows, stored in the transaction that finishes the job
    lab.py        the four kinds of `supervisor demo`

Always true: modules here import `supervisor`'s public names and your own code, and nothing of its inside. A file
whose name begins with an underscore is not imported by itself. Jobs elsewhere than in this folder:
SUPERVISOR_HANDLERS=shop.jobs,shop.mail.
"""
