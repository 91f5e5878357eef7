"""The command line: one folder per noun. Only this package assembles the parts of Sparrow."""
