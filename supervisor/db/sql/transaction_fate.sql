-- transaction_fate: what became of a transaction whose answer was lost.
--
-- Params   xid: what transaction_id gave.
-- Returns  committed, aborted, in progress; null if it is so long ago that nobody knows. One that this server has
--          not come to yet was lost in a failover: aborted.
select case when %(xid)s::text::xid8 >= pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) then 'aborted'
            else pg_catalog.pg_xact_status(%(xid)s::text::xid8) end
