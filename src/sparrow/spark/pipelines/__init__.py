"""Pipelines defined in a file: sources, SQL steps, sinks, and a checkpoint."""

from sparrow.spark.pipelines.definition import Pipeline, Sink, Source, Step, load

__all__ = ["Pipeline", "Sink", "Source", "Step", "load"]
