-- parent_gone: this supervisor has stopped.
with silent as (delete from {schema}.waiting where parent = %(id)s)
delete from {schema}.parent where id = %(id)s
