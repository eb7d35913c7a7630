"""Reports as files and as a page."""
