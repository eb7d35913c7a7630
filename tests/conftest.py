"""Fixtures of all tests."""
