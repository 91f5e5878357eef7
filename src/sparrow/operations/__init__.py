"""What an operator can see and do, as functions over `sparrow.aio.Admin` with typed results.

The command line and the REST API both call these functions. A function that changes many things has a plan beside it,
which says what would happen and has a hash; see `sparrow.operations.plans`.
"""
