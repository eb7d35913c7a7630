"""Rewriting a model, and what belongs to that: verification, reports of it, options of quantised models."""
