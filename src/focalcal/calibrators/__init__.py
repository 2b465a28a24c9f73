"""Post-hoc calibrators: fit(logits, y), predict_proba(logits), saved as JSON."""
