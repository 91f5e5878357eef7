"""Data jobs on Spark, one module or sub-package for each, such as archive, copy, forward, audit and stats.

A job consists of a struct with its arguments (`ArchiveJob`), functions from DataFrames to DataFrames, and `run`, which
connects them to a source and a sink and returns a result with counts. The command line and programs both call `run`.
"""
