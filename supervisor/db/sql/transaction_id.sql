-- transaction_id: the name of this transaction, to ask later whether it was committed.
select pg_catalog.pg_current_xact_id()::text
