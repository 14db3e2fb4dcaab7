"""The last-known-good cache of one Envoy's host.

A small process beside the Envoy records what it has in force, keeps it on disk, and serves it over
ADS while no control plane answers, so that an Envoy which starts in that time starts with the
configuration that it had.
"""
