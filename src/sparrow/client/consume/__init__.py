"""The rules of consuming, without I/O: allocation, filters, retries, and the order of deliveries."""
