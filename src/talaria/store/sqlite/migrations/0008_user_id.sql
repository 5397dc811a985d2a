-- `user` is a reserved word in PostgreSQL, where it means the database's own user.
ALTER TABLE spending RENAME COLUMN user TO user_id;
ALTER TABLE reservations RENAME COLUMN user TO user_id;
