"""Databases behind SQL stores: SQLite and PostgreSQL, their connections, tables and migrations."""
