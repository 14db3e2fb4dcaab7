"""A simulated engine: vLLM's API and metrics on a Unix socket, with a GPU's speed and no GPU."""
