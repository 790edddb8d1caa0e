"""What becomes of a run's records: comparisons, findings, the report, published pages, and files from others."""
