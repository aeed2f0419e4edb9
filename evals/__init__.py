"""Collections in BEIR layout, runs, metrics and reports; stands on top of the pipeline."""
