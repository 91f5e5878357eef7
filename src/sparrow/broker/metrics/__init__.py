"""Metrics of a broker: counters of events, samples of lag and disk, and the collector that a scrape reads."""
