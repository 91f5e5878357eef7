"""Pipelines that are declared in a file: sources, SQL steps, sinks, and where progress is kept."""

from sparrow.spark.pipelines.definition import Pipeline, Sink, Source, Step, load

__all__ = ["Pipeline", "Sink", "Source", "Step", "load"]
