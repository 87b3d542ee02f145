"""Headscope without a browser: `python -m mha_core evaluate`, `sweep` and `prune`."""
