"""Tests of writes of named vectors."""
