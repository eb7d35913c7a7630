"""How a fused node is written into a model that runs without normfuse."""
