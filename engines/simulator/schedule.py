"""The batch of an engine, advanced step by step as vLLM's scheduler does. Pure: time is given.

A step has a budget of tokens. Each sequence that already makes tokens takes one of it; what is left
goes to prompts, in chunks, in the order they came. So prompts that arrive together share the card,
and slow the tokens of all others, but stop nobody's. A prompt's last chunk makes its first token.

A sequence gets a slot once the KV cache has room for all that it may become, so nothing is ever
preempted. vLLM lets in more and preempts when that was too much.
"""

from dataclasses import dataclass

from engines.simulator.service_model import ServiceModel


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the batch or waiting for it. Times are seconds of the caller's clock."""

    prompt_tokens: int
    max_tokens: int
    arrived_s: float
    prefilled: int = 0  # tokens of the prompt
    made: int = 0  # tokens of the answer
    scheduled_s: float = 0.0  # when it left the queue
    first_token_s: float = 0.0
    last_token_s: float = 0.0

    @property
    def ended(self) -> bool:
        return self.made >= self.max_tokens


@dataclass(frozen=True, slots=True)
class StepEnd:
    """What a step brought."""

    started: tuple[Sequence, ...]  # made their first token
    continued: tuple[Sequence, ...]  # made another
    finished: tuple[Sequence, ...]  # of both: made their last, and left
    gap_s: float  # since the last token of those that continued


class Schedule:
    """The state of a batch. Call `begin`, let its seconds pass, call `end`, and so on."""

    def __init__(
        self, model: ServiceModel, *, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        """Raise ValueError when a step could not take a token of every sequence."""
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {max_num_batched_tokens}, "
                f"expected at least max_num_seqs ({max_num_seqs})"
            )
        self._model = model
        self._max_num_seqs = max_num_seqs
        self._budget = max_num_batched_tokens
        # Dicts are sets that keep the order.
        self._waiting: dict[Sequence, None] = {}
        self._prefilling: dict[Sequence, None] = {}
        self._decoding: dict[Sequence, None] = {}
        self._chunks: list[tuple[Sequence, int]] = []  # prompt tokens of the step that runs
        self._reserved = 0  # tokens that the running sequences may become
        self._held = 0  # tokens that they are
        self._ended_s = 0.0  # the last step

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    @property
    def kv_cache_usage(self) -> float:
        """The fraction of the KV cache that holds tokens, 0 to 1."""
        return min(1.0, self._held / self._model.kv_cache_tokens)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        self._waiting[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence before its end; its slot and its cache are free at once."""
        if sequence in self._waiting:
            del self._waiting[sequence]
        elif sequence in self._prefilling or sequence in self._decoding:
            self._leave(sequence)

    def begin(self, now_s: float) -> float | None:
        """Compose the next step; return how many seconds it takes, or None with nothing to do.

        Prefill is bound by compute and decode by memory bandwidth, and a step does one after the
        other. Kernels overlap them in part; the sum never promises more than the card can do.
        """
        budget = self._budget - len(self._decoding)
        self._chunks = []
        for sequence in self._prefilling:
            budget -= self._take_chunk(sequence, budget)
        while budget > 0 and (following := self._admissible()) is not None:
            self._admit(following, now_s)
            budget -= self._take_chunk(following, budget)
        sequences = len(self._decoding) + len(self._chunks)
        if not sequences:
            return None
        return self._model.step_time_s(sum(chunk for _, chunk in self._chunks), sequences)

    def end(self, now_s: float) -> StepEnd:
        """Give the sequences of the step their tokens, and let go of those that are done."""
        gap_s, self._ended_s = now_s - self._ended_s, now_s
        continued = tuple(self._decoding)  # each of them had a token when the last step ended
        started = []
        for sequence, chunk in self._chunks:
            if sequence not in self._prefilling:
                continue  # it was removed while the step ran
            sequence.prefilled += chunk
            self._held += chunk
            if sequence.prefilled == sequence.prompt_tokens:
                del self._prefilling[sequence]
                self._decoding[sequence] = None
                sequence.first_token_s = now_s
                started.append(sequence)
        self._chunks = []
        finished = []
        for sequence in self._decoding:
            sequence.made += 1
            sequence.last_token_s = now_s
            if sequence.ended:
                finished.append(sequence)
        self._held += len(self._decoding)
        for sequence in finished:
            self._leave(sequence)
        return StepEnd(tuple(started), continued, tuple(finished), gap_s)

    def _take_chunk(self, sequence: Sequence, budget: int) -> int:
        chunk = min(sequence.prompt_tokens - sequence.prefilled, budget)
        if chunk > 0:
            self._chunks.append((sequence, chunk))
        return chunk

    def _admissible(self) -> Sequence | None:
        """Return who is next in the queue, if there is a slot and room; nobody overtakes.

        Alone, a sequence is let in however large: vLLM refuses to start where one could not fit.
        """
        if self.running >= self._max_num_seqs:
            return None
        following = next(iter(self._waiting), None)
        if following is None or not self.running:
            return following
        fits = self._reserved + _most_tokens(following) <= self._model.kv_cache_tokens
        return following if fits else None

    def _admit(self, sequence: Sequence, now_s: float) -> None:
        del self._waiting[sequence]
        self._prefilling[sequence] = None
        self._reserved += _most_tokens(sequence)
        sequence.scheduled_s = now_s

    def _leave(self, sequence: Sequence) -> None:
        self._prefilling.pop(sequence, None)
        self._decoding.pop(sequence, None)
        self._reserved -= _most_tokens(sequence)
        self._held -= sequence.prefilled + sequence.made


def _most_tokens(sequence: Sequence) -> int:
    return sequence.prompt_tokens + sequence.max_tokens
