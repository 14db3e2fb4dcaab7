"""policy.yaml: strict, with all errors at once, and the last good one in force meanwhile."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.capacity import Mix
from control_plane.documents import parse_duration_s, parse_size_bytes
from control_plane.errors import InputError
from control_plane.policy import ModelPolicy, Policy, parse_policy


def parse(text):
    return parse_policy(text.encode(), source="policy.yaml")


def problems(text):
    with pytest.raises(InputError) as error:
        parse(text)
    for problem in error.value.problems:
        assert problem.source == "policy.yaml"
        assert "last good policy" in problem.meanwhile
        assert problem.expected
    return {problem.path: problem for problem in error.value.problems}


@pytest.mark.parametrize("text", ["", "{}", "# nothing\n", "models: {}"])
def test_an_empty_policy_is_all_defaults(text):
    assert parse(text) == Policy()


def test_every_field():
    policy = parse(
        """
        max_request_size: 16MiB
        retry_after: 2500ms
        defaults:
          generation_timeout: 5m
          balance: proportional
          prompt_output_mix: {prompt: 512, output: 128}
        models:
          acme/fox:
            versions: {v1: 90, 2: 10}
          acme/owl: {generation_timeout: 30s}
        """
    )
    assert policy.max_request_bytes == 16 * 1024**2
    assert policy.retry_after_s == 3  # rounded up: nobody is told to come back too early
    assert policy.model("acme/fox") == ModelPolicy(
        versions={"v1": 90, "2": 10},
        generation_timeout_s=300,
        balance="proportional",
        mix=Mix(512, 128),
    )
    assert policy.model("acme/owl").generation_timeout_s == 30
    assert policy.model("never/heard").generation_timeout_s == 300


def test_all_errors_at_once():
    found = problems(
        """
        max_request_size: 32
        retry_after: 0s
        default: {}
        defaults: {generation_timeout: 600, balance: fair}
        models:
          acme/fox:
            versions: {v1: -1, v2: 1.5}
            timeout: 3s
        """
    )
    assert sorted(found) == [
        "default",
        "defaults.balance",
        "defaults.generation_timeout",
        "max_request_size",
        "models.acme/fox.timeout",
        "models.acme/fox.versions.v1",
        "models.acme/fox.versions.v2",
        "retry_after",
    ]
    assert found["max_request_size"].value == "32"
    assert "MiB" in found["max_request_size"].expected
    assert found["defaults.balance"].expected == "'latency' or 'proportional'"
    assert found["default"].expected == "no such field"


@pytest.mark.case("D1")
@pytest.mark.parametrize(
    ("versions", "accepted"),
    [
        pytest.param("{stable: 0, canary: 0}", False, id="D1 stable 0, canary 0"),
        pytest.param("{stable: 100, canary: 0}", True, id="D1 stable 100, canary 0"),
        pytest.param("{canary: 0}", False, id="D1 only the canary, with 0"),
        pytest.param("{}", False, id="no version at all"),
    ],
)
def test_d1_a_split_must_serve_somebody(versions, accepted):
    text = f"models: {{acme/fox: {{versions: {versions}}}}}"
    if accepted:
        assert parse(text).model("acme/fox").versions == {"canary": 0, "stable": 100}
    else:
        (problem,) = problems(text).values()
        assert problem.path == "models.acme/fox.versions"
        assert "above 0" in problem.expected


@pytest.mark.parametrize(
    ("text", "path"),
    [
        pytest.param('models: {"x\\n": {}}', "models.x\n", id="a line break"),
        pytest.param('models: {"": {}}', "models.", id="an empty name"),
        pytest.param('models: {a: {versions: {" v": 1}}}', "models.a.versions. v", id="a space"),
    ],
)
def test_names_that_cannot_be_told_apart_or_written(text, path):
    assert list(problems(text)) == [path]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        pytest.param(b"models: [", "line 1, column 10: expected the node content", id="no YAML"),
        pytest.param(b"a: 1\na: 2", "given twice", id="a key twice"),
        pytest.param(b"\xff", "a byte at 0", id="not UTF-8"),
        pytest.param(b"- 1", "[1]", id="a list"),
        pytest.param(b"!!python/object/apply:os.getcwd []", "python", id="a Python object"),
        pytest.param(b"#" * (4 * 1024**2 + 1), "4194305 bytes", id="too large"),
    ],
)
def test_documents_that_cannot_be_read(data, value):
    with pytest.raises(InputError) as error:
        parse_policy(data, source="policy.yaml")
    (problem,) = error.value.problems
    assert problem.path == "document"
    assert value in problem.value


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("10 s", 10)]
)
def test_durations(text, seconds):
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("value", ["30", 30, "s", "-1s", "1d", "1e3s", "", None, "٣s", "1 000s"])
def test_a_duration_needs_a_unit(value):
    with pytest.raises(ValueError, match="with a unit"):
        parse_duration_s(value)


def test_sizes():
    assert parse_size_bytes("32MiB") == 32 * 1024**2
    with pytest.raises(ValueError, match="with a unit"):
        parse_size_bytes("32MB")


@pytest.mark.parametrize(
    ("mix", "path"),
    [
        ("{prompt: 4}", ".output"),
        ("{prompt: 0, output: 1}", ".prompt"),
        ("{prompt: 4, output: .nan}", ".output"),
        ("{prompt: '4', output: 1}", ".prompt"),
        ("4:1", ""),
    ],
)
def test_a_mix_is_two_numbers(mix, path):
    found = problems(f"defaults: {{prompt_output_mix: {mix}}}")
    assert list(found) == [f"defaults.prompt_output_mix{path}"]


@given(st.text(max_size=200) | st.binary(max_size=100).map(lambda data: data.decode("latin-1")))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(InputError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("[1]", "document", "a mapping"),
        ("models: {a: 5}", "models.a", "a mapping"),
        ("models: {1: {}}", "models", "keys that are text, in quotes"),
        ("models: {a: {versions: {~: 2}}}", "models.a.versions", "keys that are text, in quotes"),
        (
            "models: {a: {versions: {true: 2}}}",
            "models.a.versions",
            "keys that are text, in quotes",
        ),
        ("defaults: {requires: {gpu_models: []}}", "defaults.requires.gpu_models", "not empty"),
        ("defaults: {correction: {enabled: 5}}", "defaults.correction.enabled", "true or false"),
    ],
)
def test_what_was_expected_is_told_in_the_words_of_yaml(text, path, expected):
    with pytest.raises(InputError) as error:
        parse_policy(text.encode(), source="policy.yaml")
    (problem,) = error.value.problems
    assert problem.path == path
    assert expected in problem.expected
    assert "Document" not in str(problem)


def test_versions_may_be_numbers_without_quotes():
    policy = parse_policy(b"models: {a: {versions: {2: 95, 1.5: 5}}}", source="policy.yaml")
    assert policy.model("a").versions == {"2": 95, "1.5": 5}
