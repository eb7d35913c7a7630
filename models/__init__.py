"""Builders of reference models for tests, benchmarks and the demonstration."""
