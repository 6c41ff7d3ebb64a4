"""Trained models for serving: exports written and read, raw samples scored as training read them."""
