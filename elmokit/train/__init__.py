"""Pretraining: text files to a prepared corpus to a trained biLM, on Lightning's Trainer."""
