-- now: the database's clock, in seconds since 1970.
select extract(epoch from clock_timestamp())::float8
