"""Channel pruning: which channels go, from weights or from data."""
