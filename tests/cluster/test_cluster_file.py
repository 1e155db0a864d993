"""Clusters as TOML: presets, the way there and back, and what is refused."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.cluster import Topology, cluster_text, load_cluster, parse_cluster, preset_names, save_cluster
from jaxquard.errors import ClusterError, ClusterWarning

_PRESET = load_cluster("tpu-v4")
_TEXT = cluster_text(_PRESET)


def test_presets():
    assert preset_names() == (
        "a100", "a100-pcie", "b200", "cpu", "h100", "h200", "tpu-v4", "tpu-v4-fitted", "tpu-v4-main",
        "tpu-v4-simulation", "v100-nvlink", "v5e", "v5p", "v6e",
    )  # fmt: skip


@pytest.mark.parametrize("name", preset_names())
def test_preset_loads_and_comes_back(name, tmp_path):
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.compute.effective_flops_per_s < cluster.compute.peak_flops_per_s
    save_cluster(cluster, tmp_path / "cluster.toml")
    assert load_cluster(tmp_path / "cluster.toml") == cluster


@given(name=st.text(st.characters(codec="utf-8", exclude_categories=("Cs",))), sync_s=st.floats(0, 1))
def test_any_name_and_number_come_back(name, sync_s):
    cluster = replace(_PRESET, name=name, permute=replace(_PRESET.permute, sync_s=sync_s))
    assert parse_cluster(cluster_text(cluster)) == cluster


def test_a_cluster_is_its_own():
    assert load_cluster(load_cluster("h200")) == load_cluster("h200")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"torus"', '"ring"', "my.toml: network.topology should be one of torus, switch, found 'ring'."),
        ("num_chips = 4096", "num_chips = 0", "my.toml: num_chips should be above 0, found 0."),
        ("num_chips = 4096", "", "my.toml: cluster lacks the key num_chips; the keys are name, num_chips, compute, "),
        ("num_chips = 4096", "num_chips = inf", "my.toml: num_chips should be finite, found inf."),
        ("chips_per_node = 0", "chips_per_node = 8", "network has nodes of 8 of 4096 chips, so that between_nodes"),
        ("num_chips = 4096", "num_chips = 1.5", "my.toml: num_chips should be a whole number, found 1.5."),
        ("tile = 2048", "tiles = 2", "my.toml: compute has the unknown key tiles; the keys are peak_flops_per_s, "),
        ("sync_s = 6e-06", "sync_s = -1", "my.toml: all_gather.sync_s should be at least 0, found -1."),
        ("sync_s = 6e-06", "sync_s = nan", "my.toml: all_gather.sync_s should be finite, found nan."),
        ("launch_s = 2e-06", "launch_s = '0'", "my.toml: compute.launch_s should be a number, found '0'."),
        ("[memory]", "[memories]", "my.toml: cluster has the unknown key memories; the keys are name, num_chips, "),
        ("is_bidirectional = true", "is_bidirectional = 1", "is_bidirectional should be true or false, found 1."),
        (
            "249000000000000.0",
            "1e15",
            "effective_flops_per_s should be at most peak_flops_per_s (2.72e+14), found 1e+15",
        ),
        ("[memory]", "[memory", "my.toml is not TOML: "),
    ],
)
def test_errors_name_the_file_and_the_key(old, new, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert old in _TEXT
    (tmp_path / "my.toml").write_text(_TEXT.replace(old, new, 1))
    with pytest.raises(ClusterError, match=re.escape(message)):
        load_cluster("my.toml")


def test_files_that_cannot_be_read_or_written(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ClusterError, match=r"cannot read a cluster from .*binary\.toml \(it is no text\)"):
        load_cluster(tmp_path / "binary.toml")
    with pytest.raises(ClusterError, match=r"cannot write the cluster to .*my\.toml \(No such file or directory\)"):
        save_cluster(load_cluster("h200"), tmp_path / "no" / "my.toml")
    with pytest.raises(ClusterError, match="the name of a preset, the path of a TOML file, or a Cluster, but found 5"):
        load_cluster(5)


def test_texts_that_a_parser_chokes_on():
    for text, message in {"[" * 10_000: "it is nested too deeply", "9" * 5_000: "too many digits"}.items():
        with pytest.raises(ClusterError, match=f"is not TOML: .*{message}"):
            parse_cluster(f"x = {text}")


def test_missing_table():
    text = _TEXT[: _TEXT.index("[permute]")]
    with pytest.raises(ClusterError, match=r"lacks the table permute with the keys row_bandwidth_bytes_per_s, "):
        parse_cluster(text)


def test_unknown_name_lists_the_names():
    with pytest.raises(ClusterError, match=r"'tpu-v9' is neither .* Use one of a100, a100-pcie, b200, .* TOML file"):
        load_cluster("tpu-v9")


def _without(*keys):
    """The text of a cluster whose file leaves some keys out."""
    return re.sub(rf"^({'|'.join(keys)}) = .*\n", "", _TEXT, flags=re.MULTILINE)


def test_what_a_file_leaves_out_is_that_of_its_kind_and_named():
    text = _without("systolic_dim", "hides_one_collective")
    expected = "my.toml does not say all; taken are compute.systolic_dim and network.hides_one_collective of TPUs."
    with pytest.warns(ClusterWarning, match=re.escape(expected)):
        cluster = parse_cluster(text, source="my.toml")
    assert cluster == load_cluster("tpu-v4")


def test_a_gpu_has_the_defaults_of_gpus():
    text = cluster_text(load_cluster("h200"))
    with pytest.warns(ClusterWarning, match=r"taken are compute.num_cores of GPUs"):
        cluster = parse_cluster(re.sub(r"^num_cores = .*\n", "", text, flags=re.MULTILINE))
    assert cluster.compute.num_cores == 132


@pytest.mark.parametrize("name", preset_names())
def test_presets_say_all_and_charge_for_all(name):
    """Loading one warns of nothing (warnings are errors here), and no constant of the chip is left at 0."""
    cluster = load_cluster(name)
    if cluster.is_paper_set:
        assert name.startswith("tpu-v4-")
        return
    assert cluster.compute.launch_s > 0
    assert cluster.compute.output_exposed > 0
    assert cluster.compute.slice_copy_exposed > 0
    is_tpu = cluster.network.topology is Topology.TORUS
    assert cluster.network.hides_one_collective is is_tpu
    assert cluster.compute.systolic_dim == ({"v6e": 256}.get(name, 128) if is_tpu else 0)


def test_the_papers_sets_are_left_as_they_are():
    cluster = load_cluster("tpu-v4-main")
    assert cluster.is_paper_set
    assert cluster.compute.launch_s == cluster.compute.output_exposed == cluster.compute.systolic_dim == 0
    assert parse_cluster(cluster_text(cluster)) == cluster
