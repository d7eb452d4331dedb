"""Two of four weights along the input channels become zero."""
