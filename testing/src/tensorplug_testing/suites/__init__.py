"""Classes of tests that every backend inherits, one module for each contract."""
