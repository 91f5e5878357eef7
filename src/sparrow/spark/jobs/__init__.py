"""The platform's heavy data work, a module a job.

A job is a struct of its arguments, functions from DataFrames to DataFrames that say what it does, and `run`, which puts
them between a source and a sink and returns what it counted. The command line is one caller of it, a program another.
"""
