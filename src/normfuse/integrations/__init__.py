"""normfuse inside other engines; each module needs its engine installed and is imported on its own."""
