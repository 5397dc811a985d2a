"""The engine of the store on PostgreSQL. Nothing outside of this package imports psycopg."""
