"""Build a small report from rows, exactly once: the report and the job's end are one commit.

    await build.enqueue(conn, day=date(2026, 11, 28))

Its tables, here those of a shop:

    create table sale (at timestamptz not null, product text not null, quantity int not null, price numeric not null);
    create table sales_report (day date not null, job_id bigint not null, lines jsonb not null, total numeric not null);

Always true: a job that is done has left one report; a run that died, failed or lost its lease has left nothing, in
whatever moment that was. That holds for what is written on the connection of `job.transaction()`, the
jobs enqueued on it included. What leaves the database (a mail, a webhook) goes into a job of its own.
"""

from datetime import UTC, date, datetime, time, timedelta

from handlers.webhook import HookUrl, deliver
from supervisor import Job, handler

_BUILD = """
with line as (
    select product, sum(quantity) as quantity, sum(quantity * price) as amount
      from sale
     where at >= %(since)s and at < %(until)s
     group by product)
insert into sales_report (day, job_id, lines, total)
select %(day)s,
       %(job_id)s,
       coalesce(jsonb_agg(jsonb_build_object('product', product, 'quantity', quantity, 'amount', amount)
                          order by amount desc, product), '[]'),
       coalesce(sum(amount), 0)
  from line
returning total, jsonb_array_length(lines)
"""


@handler("report.daily_sales", queue="reports", timeout=60)
async def build(job: Job, day: date, notify: HookUrl | None = None) -> None:
    """Sum up the sales of *day* (UTC); tell *notify* when the report is there."""
    since = datetime.combine(day, time(), UTC)
    async with job.transaction() as conn:
        cursor = await conn.execute(
            _BUILD, {"day": day, "job_id": job.id, "since": since, "until": since + timedelta(days=1)}
        )
        row = await cursor.fetchone()
        if notify is not None and row is not None:
            # In the same transaction: the webhook is sent if, and only if, the report is there.
            await deliver.enqueue(
                conn, url=notify, event="report.ready", data={"day": day.isoformat(), "total": str(row[0])}
            )
    # The job is finished here: nothing may follow that could still fail.
