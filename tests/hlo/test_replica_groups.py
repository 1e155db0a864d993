"""Replica groups in every spelling that XLA prints."""

import pytest

from jaxquard.errors import HloError
from jaxquard.hlo import Module, replica_groups
from jaxquard.hlo.parse_module import parse_module, parse_operation


def read(attributes, *, opcode="all-gather", num_replicas=1, num_partitions=8):
    module = Module(name="m", entry="main", is_scheduled=True, num_replicas=num_replicas, num_partitions=num_partitions)
    return replica_groups(parse_operation(f"  %x = f32[8] {opcode}(%y), {attributes}"), module)


HALVES = ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", HALVES),
        ("{}", (tuple(range(8)),)),
        ("[2,4]<=[8]", HALVES),
        ("[1,8]<=[8]", (tuple(range(8)),)),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[2,4]<=[2,2,2]T(1,0,2)", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh[a=2,b=4] {b}", HALVES),
        ("mesh['a'=2,'b'=4] {'b'}", HALVES),
        ("@mesh<a=2,b=4> {b}", HALVES),
        ("mesh['a'=2,'b'=4] {'a','b'}", (tuple(range(8)),)),
        ("mesh[a=2,b=4] {a}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh[a=8] {a:(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh[a=8] {a:(2)4}", HALVES),
        ("mesh[a=8] {a:(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh[a=4,b=2], device_ids=([2,4]T(1,0)) {a}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("@mesh<a=4,b=2>(devices=[4,2]<=[2,4]T(1,0)) {b}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh[a=8], device_ids=(7,6,5,4,3,2,1,0) {a:(2)4}", ((7, 6, 5, 4), (3, 2, 1, 0))),
        ("@mesh<a=8>(devices=[8]7,6,5,4,3,2,1,0) {a:(2)4}", ((7, 6, 5, 4), (3, 2, 1, 0))),
    ],
)
def test_spellings(groups, wanted):
    assert read(f"channel_id=1, replica_groups={groups}, use_global_device_ids=true") == wanted


def test_none_are_all_devices():
    assert read("channel_id=1, use_global_device_ids=true") == (tuple(range(8)),)


def test_pairs():
    found = read("channel_id=2, source_target_pairs={{0,1},{1,2},{7,0}}", opcode="collective-permute")
    assert found == ((0, 1), (1, 2), (7, 0))


@pytest.mark.parametrize(
    ("opcode", "attributes", "replicas", "wanted"),
    [
        # Replicas alone, as `pmap` writes.
        ("all-reduce", "replica_groups={{0,1},{2,3}}", (4, 1), ((0, 1), (2, 3))),
        ("all-reduce", "replica_groups={}", (4, 1), ((0, 1, 2, 3),)),
        # The same partition of several replicas.
        ("all-reduce", "replica_groups={{0,1}}", (2, 2), ((0, 2), (1, 3))),
        # All partitions of the replicas.
        ("all-reduce", "channel_id=1, replica_groups={{0},{1}}", (2, 2), ((0, 1), (2, 3))),
        # Partitions of each replica.
        ("all-to-all", "channel_id=1, replica_groups={{0,1}}", (2, 2), ((0, 1), (2, 3))),
    ],
)
def test_replicas_and_partitions(opcode, attributes, replicas, wanted):
    assert read(attributes, opcode=opcode, num_replicas=replicas[0], num_partitions=replicas[1]) == wanted


def test_devices_of_a_module():
    text = "HloModule m, is_scheduled=true, replica_count=2, num_partitions=4\n\nENTRY %main () -> f32[] {\n}\n"
    module = parse_module(text)
    assert (module.num_replicas, module.num_partitions, module.num_devices) == (2, 4, 8)


@pytest.mark.parametrize(
    "groups", ["<8>", "[3,4]<=[8]", "[2,4]<=[2,4]T(1,1)", "mesh[a=2,b=4] {c}", "mesh[a=8] {a:(3)2}"]
)
def test_other_spellings_are_quoted(groups):
    with pytest.raises(HloError, match="in the operation x, but found: replica_groups=") as error:
        read(f"channel_id=1, replica_groups={groups}, use_global_device_ids=true")
    assert groups in str(error.value)
