"""The part of a plan that one view's resources depend on.

Two plans whose parts for a view are equal give that view the same resources, so that the change of
one engine renders the edges and its own node, not every node of the fleet.
"""

from dataclasses import dataclass

from control_plane.identity import Pool
from control_plane.plan import NodePlan, Plan, PoolPlan
from control_plane.resources.view import View


@dataclass(frozen=True, slots=True)
class _Index:
    """A plan's nodes and pools, found by name."""

    plan: Plan
    nodes: dict[str, NodePlan]
    pools: dict[Pool, PoolPlan]
    silences_s: dict[Pool, float]


class PlanParts:
    """Takes parts out of plans; holds an index of the last plan."""

    def __init__(self) -> None:
        self._index: _Index | None = None

    def __call__(self, plan: Plan, view: View) -> object:
        """Return the part, a value to compare."""
        if view.role == "edge":
            return (
                plan.models,
                plan.pools,
                plan.edges,
                plan.request_limit,
                plan.max_request_bytes,
                plan.retry_after_s,
                plan.mesh_tls,
            )
        index = self._indexed(plan)
        node = index.nodes.get(view.node_id)
        if node is None:
            return None
        settings = tuple(
            [
                (pool.balance, pool.slow_start_s, pool.max_queue, index.silences_s.get(pool.pool))
                for engine in node.engines
                for pool in (index.pools[engine.pool],)
            ]
        )
        return node, settings, plan.max_request_bytes, plan.retry_after_s, plan.mesh_tls

    def _indexed(self, plan: Plan) -> _Index:
        if self._index is None or self._index.plan is not plan:
            self._index = _Index(
                plan,
                {node.id: node for node in plan.nodes},
                {pool.pool: pool for pool in plan.pools},
                {
                    pool: model.generation_timeout_s
                    for model in plan.models
                    for pool, _ in model.routes
                },
            )
        return self._index
