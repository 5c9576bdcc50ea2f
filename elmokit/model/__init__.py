"""The network: ids to token vectors to biLM layers to their mix. Needs torch only and opens no file."""
