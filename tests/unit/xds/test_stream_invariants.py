"""All four types at once, wildcard and named, ACKed, refused and late: what holds at every step.

The model is a client that applies what it ACKs and nothing of what it refuses. A few versions of
some names are "poison": it refuses every response that holds one, as an Envoy would.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from control_plane.stream import ORDER_TIMEOUT_S
from tests.support.xds import KINDS, Client

NAMES = ("A", "B", "C")
WILDCARD_KINDS = ("cds", "lds")
POISON = "v9"
ONE_KIND = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["v1", "v2", POISON]))
WORLDS = st.fixed_dictionaries(dict.fromkeys(KINDS, ONE_KIND))


class EnvoyModel(RuleBasedStateMachine):
    """An Envoy on one stream, and a world that changes under it."""

    def __init__(self):
        super().__init__()
        self.world: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
        self.client = Client(**self.world)
        self.wanted: dict[str, set[str]] = {}  # kinds that were asked for
        self.wildcard: set[str] = set()
        self.held: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
        self.outstanding: dict[str, Any] = {}

    def take(self, said, *, answers=frozenset()):
        for kind, names, removed in said:
            assert kind not in self.outstanding, "two responses of a type un-ACKed"
            assert len({*names, *removed}) == len(names) + len(removed), "a name twice"
            if kind not in self.wildcard:
                unasked = {*names, *removed} - self.wanted[kind] - answers
                assert not unasked, f"never subscribed: {unasked}"
            self.outstanding[kind] = self.client.last[kind]

    @rule(kind=st.sampled_from(sorted(KINDS)), names=st.sets(st.sampled_from(NAMES)))
    def subscribe(self, kind, names):
        if kind not in self.wanted and kind in WILDCARD_KINDS and not names:
            self.wildcard.add(kind)
        self.wanted.setdefault(kind, set()).update(names)
        self.take(self.client.send(kind, subscribe=tuple(sorted(names))))

    @precondition(lambda self: any(self.wanted.values()))
    @rule(data=st.data())
    def unsubscribe(self, data):
        kind = data.draw(st.sampled_from(sorted(k for k, names in self.wanted.items() if names)))
        name = data.draw(st.sampled_from(sorted(self.wanted[kind])))
        self.wanted[kind].discard(name)
        if kind not in self.wildcard:
            self.held[kind].pop(name, None)
        self.take(self.client.send(kind, unsubscribe=(name,)))

    @rule(world=WORLDS)
    def change(self, world):
        self.world = world
        self.take(self.client.change(**world))

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data())
    def answer(self, data):
        self.answer_kind(data.draw(st.sampled_from(sorted(self.outstanding))))

    def answer_kind(self, kind):
        response = self.outstanding.pop(kind)
        error = None
        if any(item.version == POISON for item in response.resources):
            error = "poison"
        else:
            for item in response.resources:
                if kind in self.wildcard or item.name in self.wanted[kind]:
                    self.held[kind][item.name] = item.version
        for name in response.removed_resources:
            self.held[kind].pop(name, None)
        self.take(self.client.send(kind, nonce=response.nonce, error=error))

    @rule(seconds=st.sampled_from([0.1, ORDER_TIMEOUT_S]))
    def wait(self, seconds):
        self.client.now += seconds
        self.take(self.client.poll())

    @invariant()
    def no_deadline_lies_in_the_past_once_it_was_acted_on(self):
        self.take(self.client.poll())
        deadline = self.client.stream.next_deadline()
        assert deadline is None or deadline > self.client.now

    @invariant()
    def asking_again_brings_nothing_new(self):
        assert self.client.poll() == []

    def teardown(self):
        """Whatever happened: once all is answered the client holds all good content it wants."""
        for _ in range(50):
            if not self.outstanding:
                self.client.now += ORDER_TIMEOUT_S
                self.take(self.client.poll())
            if not self.outstanding:
                break
            self.answer_kind(sorted(self.outstanding)[0])
        assert not self.outstanding, "it never came to rest: something is sent without end"
        for kind, names in self.wanted.items():
            good = {
                name: version
                for name, version in self.world[kind].items()
                if version != POISON and (kind in self.wildcard or name in names)
            }
            refused = self.client.stream.subscriptions[KINDS[kind]].refused
            for name, version in good.items():
                # What stood beside poison in a response is not sent again by itself either.
                assert version in (self.held[kind].get(name), refused.get(name))
            assert set(self.held[kind]) <= set(self.world[kind]), "holds what is gone"


TestEnvoyModel = EnvoyModel.TestCase
