"""Rewrites of Q/DQ pairs, of QLinear operators and of quantised weights."""
