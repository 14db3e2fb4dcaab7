"""Cluster names: reversible, dot-free, and never two for one or one for two."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.identity import (
    Pool,
    cluster_name,
    decode_name,
    encode_name,
    parse_cluster_name,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("pool", "name"),
    [
        pytest.param(Pool("fox"), "fox", id="no version"),
        pytest.param(Pool("fox", "v1"), "fox__v1", id="version"),
        pytest.param(Pool("acme/Fox2.5-7B", "v1"), "acme_2FFox2_2E5-7B__v1", id="slash and dot"),
        pytest.param(Pool("a_b", "c__d"), "a_5Fb__c_5F_5Fd", id="underscores"),
        pytest.param(Pool("狐"), "_E7_8B_90", id="CJK"),
    ],
)
def test_cluster_name(pool, name):
    assert cluster_name(pool) == name
    assert parse_cluster_name(name) == pool


@pytest.mark.case("D8")
def test_d8_names_that_differ_by_one_sign_do_not_collapse():
    models = ["a.b", "a/b", "a_b", "a:b", "a b", "ab", "acme/Fox2.5-7B", "acme/Fox2.5-14B"]
    names = {cluster_name(Pool(model)) for model in models}
    assert len(names) == len(models)
    assert not any("." in name or ":" in name for name in names)


@pytest.mark.case("D8")
@given(NAMES, st.just("") | NAMES)
def test_d8_every_name_comes_back(model, version):
    name = cluster_name(Pool(model, version))
    assert re.fullmatch(r"[A-Za-z0-9_-]+", name)
    assert parse_cluster_name(name) == Pool(model, version)


@given(NAMES, NAMES)
def test_different_texts_have_different_names(one, other):
    assert (encode_name(one) == encode_name(other)) == (one == other)


@pytest.mark.parametrize("name", ["a.b", "a_", "a_2", "a_2f", "a_zz", "a__", "_41"])
def test_what_no_name_encodes_to_is_refused(name):
    with pytest.raises(ValueError, match=r"is not an encoded name|ends where"):
        parse_cluster_name(name)


def test_decoding_refuses_bytes_that_are_no_text():
    with pytest.raises(ValueError, match="decode"):
        decode_name("_FF")
