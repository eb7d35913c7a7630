"""Rules that join what precedes or follows a fused node."""
