-- retry_job: put dead or cancelled jobs back. See functions/080_operate.sql.
select {schema}.retry_job(%(ids)s::bigint[])
