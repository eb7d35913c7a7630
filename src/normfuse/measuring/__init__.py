"""Times of a model, and what they are made of."""
