"""Whatever a client says in whatever order, after all ACKs it holds exactly what it wants."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.xds import KINDS, Client

NAMES = ("A", "B", "C", "D")
VERSIONS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["v1", "v2", "v3"]))


class EndpointClient(RuleBasedStateMachine):
    """An Envoy that asks for endpoints by name, and a world that changes under it."""

    def __init__(self):
        super().__init__()
        self.client = Client(eds={})
        self.world = {}
        self.wanted = set()
        self.held = {}
        self.outstanding = []

    def take(self, said):
        assert len(said) <= 1
        self.outstanding += [self.client.last["eds"] for _ in said]

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1))
    def subscribe(self, names):
        self.wanted |= names
        self.take(self.client.send("eds", subscribe=tuple(sorted(names))))

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def unsubscribe(self, data):
        name = data.draw(st.sampled_from(sorted(self.wanted)))
        self.wanted.discard(name)
        self.held.pop(name, None)
        self.take(self.client.send("eds", unsubscribe=(name,)))

    @rule(world=VERSIONS)
    def change(self, world):
        self.world = world
        self.take(self.client.change(eds=world))

    @precondition(lambda self: self.outstanding)
    @rule()
    def ack(self):
        response = self.outstanding.pop()
        for item in response.resources:
            if item.name in self.wanted:
                self.held[item.name] = item.version
        for name in response.removed_resources:
            self.held.pop(name, None)
        self.take(self.client.send("eds", nonce=response.nonce))

    @invariant()
    def at_most_one_response_is_outstanding(self):
        assert len(self.outstanding) <= 1

    @invariant()
    def what_is_outstanding_is_known_to_the_stream(self):
        subscription = self.client.stream.subscriptions.get(KINDS["eds"])
        known = subscription is not None and subscription.outstanding is not None
        assert known == bool(self.outstanding)

    def teardown(self):
        while self.outstanding:
            self.ack()
        expected = {name: self.world[name] for name in self.wanted if name in self.world}
        assert self.held == expected


TestConvergence = EndpointClient.TestCase
