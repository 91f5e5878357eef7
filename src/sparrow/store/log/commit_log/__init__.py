"""The commit log: segments, their mapped pages, and the scan that recovery reads them with."""
