"""Channel pruning: which channels hang together, and what a graph looks like without some of them."""
