"""Two releases beside each other on one database: before, during and after a migration."""
