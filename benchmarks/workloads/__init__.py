"""One module per workload; :mod:`benchmarks.workloads.registry` knows them by name."""
