"""What becomes of a run's records: comparisons, findings, the report, and files that others contribute."""
