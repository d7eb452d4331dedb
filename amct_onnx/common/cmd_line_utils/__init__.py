"""Helpers of AMCT's command line, where scripts for AMCT import them from."""
