"""node.yaml: strict, all errors at once, before anything starts."""

from pathlib import Path

import pytest

from control_plane.errors import InputError
from control_plane.metadata import parse_metadata, render_metadata
from engines.keep_alive import ENGINE_KEEP_ALIVE_S, upstream_idle_timeout_s
from engines.node_config import parse_node

EXAMPLES = Path(__file__).parents[3] / "engines" / "examples"
HEAD = "node: node-a\naddress: 10.0.0.1\nmesh_port: 10443\n"


def parse(text):
    return parse_node(text.encode(), source="node.yaml")


def problems(text):
    with pytest.raises(InputError) as error:
        parse(text)
    for problem in error.value.problems:
        assert problem.source == "node.yaml"
        assert problem.meanwhile == "nothing is started"
        assert problem.expected
    return {problem.path: problem for problem in error.value.problems}


@pytest.mark.parametrize("name", ["node-a.yaml", "node-b.yaml", "vllm.yaml"])
def test_the_examples_are_good(name):
    config = parse_node((EXAMPLES / name).read_bytes(), source=name)
    assert config.engines


def test_defaults():
    config = parse(HEAD + "engines: [{name: e0, model: acme/fox}]")
    assert config.socket_dir == "/run/wattmesh"
    assert config.engine_keep_alive_s == ENGINE_KEEP_ALIVE_S
    (engine,) = config.engines
    assert (engine.launcher, engine.version, engine.gpu_power) == ("vllm", "", None)
    assert config.socket(engine) == "/run/wattmesh/e0.sock"


def test_a_version_that_yaml_reads_as_a_number_is_its_text():
    config = parse(HEAD + "engines: [{name: e0, model: m, version: 2}]")
    assert config.engines[0].version == "2"


def test_what_an_engine_declares_is_what_the_control_plane_reads():
    config = parse(
        HEAD + "engine_keep_alive: 8s\nengines: [{name: e0, model: acme/fox, version: v1, "
        "gpu_model: NVIDIA L4, gpu_count: 2, gpu_power: 40, max_num_seqs: 16, zone: r1}]"
    )
    declared = config.metadata(config.engines[0], "warming")
    rendered = render_metadata(declared)
    assert rendered["keep_alive_s"] == "8"
    assert parse_metadata(rendered, source="consul", path="[0]") == (declared, ())


def test_all_errors_at_once():
    found = problems(
        """
        node: "bad name"
        mesh_port: 0
        engine_keep_alive: 5
        colour: blue
        engines:
          - {name: e0, model: m, gpu_count: 0, max_num_seqs: many}
          - {name: e1, launcher: llama, gpu_power: .inf}
        """
    )
    assert sorted(found) == [
        "address",
        "colour",
        "engine_keep_alive",
        "engines[0].gpu_count",
        "engines[0].max_num_seqs",
        "engines[1].gpu_power",
        "engines[1].launcher",
        "engines[1].model",
        "mesh_port",
    ]
    assert found["address"].value == "missing"


def test_what_needs_the_whole_file_comes_at_once_too():
    found = problems(
        HEAD.replace("node-a", "bad name")
        + """
engines:
  - {name: E0, model: "a\\nb"}
  - {name: e1, model: m, args: [--port, "80", --uds=/x, --seed, "1"]}
  - {name: e1, model: m, gpu_model: %s}
"""
        % ("g" * 600)
    )
    assert sorted(found) == [
        "engines[0].model",
        "engines[0].name",
        "engines[1].args[0]",
        "engines[1].args[2]",
        "engines[2].gpu_model",
        "engines[2].name",
        "node",
    ]
    assert "512" in found["engines[2].gpu_model"].expected
    assert "600" in found["engines[2].gpu_model"].expected


@pytest.mark.case("A1")
@pytest.mark.parametrize(
    ("directory", "size"),
    [
        pytest.param("/" + "a" * 98, None, id="A1 107 bytes"),
        pytest.param("/" + "a" * 8 + "é" * 45, None, id="A1 accented, 107 bytes"),
        pytest.param("/" + "a" * 99, 108, id="A1 108 bytes"),
        pytest.param("/" + "a" * 8 + "é" * 46, 109, id="A1 one accent more"),
    ],
)
def test_a1_a_socket_path_is_refused_before_any_engine_starts(directory, size):
    text = HEAD + f"socket_dir: {directory}\nengines: [{{name: e0, model: m}}]".replace("e0", "e0")
    if size is None:
        config = parse(text)
        assert len(config.socket(config.engines[0]).encode()) == 107
    else:
        (problem,) = problems(text).values()
        assert problem.path == "engines[0].socket"
        assert "107 bytes" in problem.expected
        assert str(size) in problem.expected


def engine_of(fields):
    (engine,) = parse(HEAD + f"engines: [{{name: e0, model: m, {fields}}}]").engines
    return engine


@pytest.mark.parametrize(
    ("fields", "gpus", "tensor_parallel_size", "ranks"),
    [
        ("version: v1", None, None, 1),
        ("gpus: []", (), None, 1),
        ("gpus: [1]", (1,), None, 1),
        ("gpus: [GPU-6a1c0000-0000]", ("GPU-6a1c0000-0000",), None, 1),
        ("gpus: [0, 1]", (0, 1), 2, 2),
        ("gpus: [0, 1], tensor_parallel_size: 1", (0, 1), 1, 1),
        ('gpus: [0, 1], args: [-pp, "2"]', (0, 1), None, 2),
        ("gpus: [0, 1], args: [--data_parallel_size=2]", (0, 1), None, 2),
        ('tensor_parallel_size: 4, args: ["-pp=2"]', None, 4, 8),
    ],
)
def test_cards_and_ranks(fields, gpus, tensor_parallel_size, ranks):
    engine = engine_of(fields)
    assert engine.gpus == gpus
    assert engine.tensor_parallel_size == tensor_parallel_size
    assert engine.ranks == ranks


@pytest.mark.parametrize(
    ("fields", "path", "expected"),
    [
        ("gpus: 0", "engines[0].gpus", "list"),
        ("gpus: [-1]", "engines[0].gpus[0]", "index"),
        ("gpus: [0, 0]", "engines[0].gpus[1]", "not in the list yet"),
        ("gpus: ['0']", "engines[0].gpus[0]", "UUID"),
        ("gpus: [all]", "engines[0].gpus[0]", "UUID"),
        ("gpus: [0, GPU-6a1c0000]", "engines[0].gpus", "not both"),
        ("gpus: [0], tensor_parallel_size: 2", "engines[0].gpus", "at least 2"),
        ('gpus: [0], args: [-pp, "4"]', "engines[0].gpus", "at least 4"),
        (
            'gpus: [0], env: {CUDA_VISIBLE_DEVICES: "1"}',
            "engines[0].env.CUDA_VISIBLE_DEVICES",
            "gpus",
        ),
        (
            'gpus: [], env: {HIP_VISIBLE_DEVICES: "1"}',
            "engines[0].env.HIP_VISIBLE_DEVICES",
            "gpus",
        ),
        ('args: [-tp, "2"]', "engines[0].args[0]", "agent does not set"),
        ("args: [--tensor_parallel_size=2]", "engines[0].args[0]", "agent does not set"),
        ("gpu_compute_capability: gfx942", "engines[0].gpu_compute_capability", "8.9"),
        ("gpu_compute_capability: 9", "engines[0].gpu_compute_capability", "8.9"),
        ("gpu_power: 1.0e-310", "engines[0].gpu_power", "0.001"),
        ("max_num_seqs: 2147483647", "engines[0].max_num_seqs", "1000000"),
        ("gpu_power_default_w: 0", "engines[0].gpu_power_default_w", "greater"),
        ("gpu_memory_mib: 1.5", "engines[0].gpu_memory_mib", "a whole number"),
        ("gpus: [1.5]", "engines[0].gpus[0]", "UUID"),
        ("gpus: [true]", "engines[0].gpus[0]", "UUID"),
        ("version: true", "engines[0].version", "text, in quotes"),
        ("env: {1: x}", "engines[0].env", "keys that are text"),
    ],
)
def test_what_is_wrong_with_cards(fields, path, expected):
    found = problems(HEAD + f"engines: [{{name: e0, model: m, {fields}}}]")
    assert expected in found[path].expected


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        (r'args: ["a\0b"]', "engines[0].args[0]"),
        (r'args: ["\ud800"]', "engines[0].args[0]"),
        (r'env: {A: "a\0b"}', "engines[0].env.A"),
        ('env: {"A=B": x}', "engines[0].env"),
        ('env: {"": x}', "engines[0].env"),
        (r'env: {"A\0": x}', "engines[0].env"),
        (r'model_path: "/m\0"', "engines[0].model_path"),
        (r'gpu_model: "L4\0"', "engines[0].gpu_model"),
        (r'zone: "a\nb"', "engines[0].zone"),
    ],
)
def test_what_no_process_can_be_started_with_is_refused(fields, path):
    assert path in problems(HEAD + f"engines: [{{name: e0, model: m, {fields}}}]")


@pytest.mark.parametrize(
    "address", ["gpu-1.example", r"a\nb", r"\0", "a b", "10.0.0.1:80", "fe80::1%1"]
)
def test_an_address_is_one_that_envoys_connect_to(address):
    text = HEAD.replace("10.0.0.1", f'"{address}"') + "engines: []"
    assert "IP address" in problems(text)["address"].expected


def test_a_socket_group_without_a_nul():
    assert "socket_group" in problems(HEAD + 'socket_group: "a\\0b"\nengines: []')


def test_facts_of_a_card_may_be_stated():
    config = parse(
        HEAD + "engines: [{name: e0, model: m, gpu_compute_capability: 10.0, gpu_memory_mib: 80000,"
        " gpu_power_limit_w: 400, gpu_power_default_w: 700}]"
    )
    declared = config.metadata(config.engines[0], "ready")
    assert (declared.gpu_compute_capability, declared.gpu_memory_mib) == ("10.0", 80000)
    assert (declared.gpu_power_limit_w, declared.gpu_power_default_w) == (400, 700)


@pytest.mark.parametrize("text", ["- 1", "node: [", "engines: {}", ""])
def test_documents_that_are_no_node(text):
    assert problems(text)


@pytest.mark.case("B1")
@pytest.mark.parametrize("keep_alive_s", [1, 5, 8, 3600])
def test_b1_envoys_idle_time_out_is_below_the_engines_keep_alive(keep_alive_s):
    assert 0 < upstream_idle_timeout_s(keep_alive_s) < keep_alive_s
    assert upstream_idle_timeout_s(ENGINE_KEEP_ALIVE_S) == 3
