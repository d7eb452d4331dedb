"""From a model and data to a plan: calibration engine, algorithms, and the planner that puts them together."""
