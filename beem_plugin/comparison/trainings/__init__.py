"""Trains the configs of a comparison, several at a time, each once, and keeps what is done."""
