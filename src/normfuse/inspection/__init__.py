"""What is known of a model without running it for its values."""
