-- 0009_checks: the checks of job in fewer and shorter expressions.
--
-- Placeholders  {schema} is the quoted schema name; nothing else is replaced.
--
-- The server reads the text of each check, and makes it ready, in every statement that writes the table; so what
-- counts for one job at a time is how many parts they have. These refuse what those before
-- refused. Not valid: what is there has passed those, so the table is not read while it is locked.
alter table {schema}.job
    drop constraint if exists job_queue_check,
    drop constraint if exists job_kind_check,
    drop constraint if exists job_unique_key_check,
    drop constraint if exists job_max_attempts_check,
    drop constraint if exists job_max_crashes_check,
    drop constraint if exists job_times_check,
    drop constraint if exists job_counts_check,
    add constraint job_names_check check (
        least(octet_length(queue), octet_length(kind), octet_length(unique_key)) >= 1
        and greatest(octet_length(queue), octet_length(kind)) <= 128) not valid,
    add constraint job_unique_key_check check (octet_length(unique_key) <= 1024) not valid,
    -- Of several times, or numbers, the least and the greatest; null counts for nothing.
    add constraint job_times_check check (
        least(run_at, created_at, started_at, cancel_at, unknown_since) >= '1970-01-01 00:00:00+00'
        and greatest(run_at, created_at, started_at, cancel_at, unknown_since) <= '9999-12-31 00:00:00+00') not valid,
    add constraint job_counts_check check (
        least(max_attempts, max_crashes) >= 1 and least(attempts, crashes) >= 0 and greatest(attempts, crashes) <= 1073741824
        and claims between 0 and 4611686018427387904) not valid;
