"""Scripts that rebuild the models; they need PyTorch, which nothing else in this repository does."""
