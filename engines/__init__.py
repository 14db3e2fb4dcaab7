"""Wattmesh's host side: starts, watches and registers the vLLM engines of one host."""
