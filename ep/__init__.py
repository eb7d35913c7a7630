"""The execution provider: its operator specification, and where its native library is."""
