"""What the control plane counts about itself.

One object per process, handed to whoever counts; there is no module-level registry. Names and
labels are public API. Cluster labels carry the encoded pool name; `wattmesh_pool_info` maps it to
the full model and version.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """All metrics of one control plane, in one registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.catalog_reads = Counter(
            "wattmesh_catalog_reads", "Catalog reads by result", ["result"], registry=registry
        )
        self.catalog_problems = Gauge(
            "wattmesh_catalog_problems", "Catalog entries dropped as unusable", registry=registry
        )
        self.catalog_held = Gauge(
            "wattmesh_catalog_held_engines",
            "Engines kept although the last read lacked them (suspected loss)",
            registry=registry,
        )
        self.policy_errors = Gauge(
            "wattmesh_policy_errors",
            "Problems of the policy that is refused now",
            registry=registry,
        )
        self.unexpected_errors = Counter(
            "wattmesh_unexpected_errors",
            "Exceptions that nobody expected; the last good state stayed in force",
            ["where"],
            registry=registry,
        )
        self.engines = Gauge("wattmesh_engines", "Engines by state", ["state"], registry=registry)
        self.engine_weight = Gauge(
            "wattmesh_engine_weight",
            "Endpoint weight of an engine within its pool on its node",
            ["node", "engine", "cluster"],
            registry=registry,
        )
        self.engine_gpu_power = Gauge(
            "wattmesh_engine_gpu_power",
            "Relative capacity of an engine; one A100-80GB is 100",
            ["node", "engine", "cluster", "source"],
            registry=registry,
        )
        self.engine_capacity = Gauge(
            "wattmesh_engine_capacity",
            "What weights follow: gpu_power, corrected where it was measured",
            ["node", "engine", "cluster"],
            registry=registry,
        )
        self.capacity_scrapes = Counter(
            "wattmesh_capacity_scrapes",
            "Scrapes of engines' metrics for measuring their capacity, by result",
            ["result"],
            registry=registry,
        )
        self.pool_info = Gauge(
            "wattmesh_pool_info",
            "Always 1; maps an Envoy cluster name to model and version",
            ["cluster", "model", "version"],
            registry=registry,
        )
        self.plan_seconds = Histogram(
            "wattmesh_plan_seconds", "Time from a catalog to a published plan", registry=registry
        )
        self.payload_refused = Counter(
            "wattmesh_payload_refused",
            "Snapshots that our own payload checks refused",
            ["role"],
            registry=registry,
        )
        self.xds_quarantined = Gauge(
            "wattmesh_xds_quarantined",
            "Contents that an Envoy refused and that are sent to nobody",
            registry=registry,
        )
        self.xds_canary_held = Gauge(
            "wattmesh_xds_canary_held",
            "Envoys that wait for canaries to acknowledge a changed configuration",
            ["role"],
            registry=registry,
        )
        self.xds_canary_releases = Counter(
            "wattmesh_xds_canary_releases",
            "Changes that Envoys waited for, by why the wait ended",
            ["reason"],
            registry=registry,
        )
        self.xds_new_streams = Counter(
            "wattmesh_xds_new_streams",
            "Streams that opened, by what the connect-rate limit did with them",
            ["result"],
            registry=registry,
        )
        self.xds_orphaned = Counter(
            "wattmesh_xds_orphaned_streams",
            "Streams that resumed endpoints and asked for no clusters",
            registry=registry,
        )
        self.xds_streams = Gauge(
            "wattmesh_xds_streams", "Open ADS streams", ["role"], registry=registry
        )
        self.xds_requests = Counter(
            "wattmesh_xds_requests",
            "Discovery requests by kind: ack, nack, subscribe, stale, unknown_type",
            ["type", "kind"],
            registry=registry,
        )
        self.xds_responses = Counter(
            "wattmesh_xds_responses", "Discovery responses sent", ["type"], registry=registry
        )
        self.xds_largest_response = Gauge(
            "wattmesh_xds_largest_response_bytes",
            "Largest discovery response so far",
            ["type"],
            registry=registry,
        )
        self.xds_resources = Counter(
            "wattmesh_xds_resources_sent", "Resources sent", ["type"], registry=registry
        )
