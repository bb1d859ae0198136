-- discover: register lanes found in the job table. See functions/070_sweep.sql.
select {schema}.discover()
