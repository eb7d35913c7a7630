"""Models as files: read, checked, written."""
