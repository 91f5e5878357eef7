"""Every metric of Sparrow, by what reports it; docs/metrics.md is generated from these tables."""
