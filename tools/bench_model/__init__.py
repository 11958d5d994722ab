"""Synthetic V4.1 checkpoints with random weights; tools/make_bench_model.py is the command."""
