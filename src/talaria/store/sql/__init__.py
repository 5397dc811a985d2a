"""The store in the SQL that SQLite and PostgreSQL share. Nothing here imports a driver."""
