"""The packaged demo: a small trained model with labelled data."""
