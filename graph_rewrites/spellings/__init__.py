"""Rules that find one operator in the ways that exporters write it."""
