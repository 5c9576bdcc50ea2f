"""Strings to arrays: readers, tokenisers, character ids, vocabularies, batches. Needs numpy only."""
