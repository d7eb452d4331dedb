"""Other quantizers, run on the same models and the same calibration feeds."""
