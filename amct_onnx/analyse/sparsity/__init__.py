"""Which two of four weights stay."""
