"""What every rewrite shares: facts about a model's values, patterns and their matcher, and fused nodes."""
