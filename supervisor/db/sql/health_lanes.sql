-- health_lanes: how many lanes there are.
--
-- Locks    none. The table has a row per (queue, priority) in use.
select count(*) from {schema}.lane
