-- cancel_job: take jobs out of the queue, or ask running ones to stop. See functions/080_operate.sql.
select id, what from {schema}.cancel_job(%(ids)s::bigint[])
