"""A kind that adds many jobs in its own transaction."""

from supervisor import Job, NewJob, enqueue_many, handler


@handler("b.bulk")
async def bulk(job: Job, count: int) -> None:
    """Add *count* jobs that do nothing, in the transaction that ends this one."""
    async with job.transaction() as conn:
        await enqueue_many(conn, [NewJob("t.noop") for _ in range(count)])
