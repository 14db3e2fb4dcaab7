"""Wattmesh's control plane: Consul's catalog and a policy in, weighted xDS resources out."""
