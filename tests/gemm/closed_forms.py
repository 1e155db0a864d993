"""The time of a product by every algorithm, written out by hand from sections 2 to 4 of MeshSlice: an oracle.

It shares nothing with the package but the numbers of a `Cluster`. A product C[M,N] over K, on a mesh of R x C chips
with R C = P, moves two matrices, one along the columns (h, on rings of C chips) and one along the rows (v, of R):

          h                v
    os    A[M,K] gathered  B[K,N] gathered
    ls    C[M,N] reduced   B[N,K] gathered
    rs    A[K,M] gathered  C[M,N] reduced

An operation on a ring of p chips whose shards have x bytes takes launch + (p - 1) (sync + x / bandwidth), and nothing
if p = 1 (section 3.2.2). A SendRecv to the neighbour is an operation with p = 2: n of them, one after another, take
n (launch + sync + x / bandwidth), or launch + n (sync + x / bandwidth) if that is what was measured. Operations that
run at once over a switch, where h and v share a port (section 6), each take as long as the transfers of both.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Op:
    """Something on the links: seconds of launch and synchronisation, and seconds of transfer."""

    latency_s: float = 0.0
    transfer_s: float = 0.0

    @property
    def alone_s(self):
        return self.latency_s + self.transfer_s


def product_s(
    cluster, dataflow, *, m, k, n, algorithm, mesh_shape, num_slices,
    item_bytes=2, ring="", bidirectional=False, num_packets=1,
):  # fmt: skip
    """The seconds of one product; `dataflow` is "os", "ls" or "rs", `ring` "h", "v" or the one that sends more."""
    case = Case(cluster, dataflow, m, k, n, *mesh_shape, item_bytes)
    return {
        "meshslice": lambda: meshslice_s(case, num_slices),
        "collective": lambda: meshslice_s(case, 1),
        "wang": lambda: wang_s(case, num_slices, ring or case.longer_ring(), bidirectional),
        "1d_tp": lambda: wang_s(case, num_slices, "h", bidirectional),
        "fsdp": lambda: wang_s(case, num_slices, "v", bidirectional),
        "summa": lambda: summa_s(case, num_slices, num_packets),
        "cannon": lambda: cannon_s(case),
    }[algorithm]()


@dataclass(frozen=True, slots=True)
class Case:
    """A product on a mesh, and the plain numbers that follow from it."""

    cluster: object
    dataflow: str
    m: int
    k: int
    n: int
    rows: int
    columns: int
    item_bytes: int

    def ring(self, side):
        return self.columns if side == "h" else self.rows

    def is_output(self, side):
        return (self.dataflow, side) in (("ls", "h"), ("rs", "v"))

    def shard_bytes(self, side):
        left, right, out = self.m * self.k, self.k * self.n, self.m * self.n
        moved = {"os": {"h": left, "v": right}, "ls": {"h": out, "v": right}, "rs": {"h": left, "v": out}}
        return moved[self.dataflow][side] * self.item_bytes / (self.rows * self.columns)

    def longer_ring(self):
        sent = {side: (self.ring(side) - 1) * self.shard_bytes(side) for side in "hv"}
        return "h" if sent["h"] >= sent["v"] else "v"

    def leaves_node(self, side):
        """Chips are numbered along a row: whether a ring along this side has chips of two nodes."""
        node = self.cluster.network.chips_per_node
        if not node or not self.cluster.network.between_nodes_bandwidth_bytes_per_s:
            return False
        chips = range(self.rows * self.columns)
        rings = {chip: chip // self.columns if side == "h" else chip % self.columns for chip in chips}
        return any(rings[a] == rings[b] and a // node != b // node for a in chips for b in chips)

    def link(self, side, kind, bidirectional=False):
        """Bandwidth, sync and launch; halves that go both ways at once have twice the bandwidth, where links can."""
        links = getattr(self.cluster, kind)
        bandwidth = links.column_bandwidth_bytes_per_s if side == "h" else links.row_bandwidth_bytes_per_s
        if bidirectional and self.cluster.network.is_bidirectional:
            bandwidth *= 2
        sync_s = links.sync_s
        if self.leaves_node(side):
            bandwidth = min(bandwidth, self.cluster.network.between_nodes_bandwidth_bytes_per_s)
            sync_s += self.cluster.network.between_nodes_sync_s
        return bandwidth, sync_s, links.launch_s

    def collective(self, side, num_slices=1):
        """An all-gather or reduce-scatter of one slice."""
        bandwidth, sync_s, launch_s = self.link(side, "reduce_scatter" if self.is_output(side) else "all_gather")
        steps = self.ring(side) - 1
        shard = self.shard_bytes(side) / num_slices
        return Op(launch_s + steps * sync_s, steps * shard / bandwidth) if steps else Op()

    def shift(self, side, steps, bidirectional=False):
        """Shards go on by so many places."""
        if self.ring(side) == 1:
            return Op()
        return self.sends(side, steps, self.shard_bytes(side), bidirectional)

    def sends(self, side, count, size_bytes, bidirectional=False):
        """So many SendRecvs of so many bytes each, one after another."""
        bandwidth, sync_s, launch_s = self.link(side, "permute", bidirectional)
        latency_s = transfer_s = 0.0
        for number in range(count):
            if number == 0 or self.cluster.network.launches_each_permute:
                latency_s += launch_s
            latency_s += sync_s
            transfer_s += size_bytes / bandwidth
        return Op(latency_s, transfer_s)

    def at_once_s(self, **ops):
        """The seconds of each of some operations when all run at once, by side."""
        moving = {side: op for side, op in ops.items() if op.alone_s}
        shared = self.cluster.network.topology.value == "switch" and self.leaves_node("h") == self.leaves_node("v")
        transfer_s = sum(op.transfer_s for op in moving.values())
        return {
            side: 0.0 if side not in moving else op.latency_s + (transfer_s if shared else op.transfer_s)
            for side, op in ops.items()
        }

    def compute_s(self, parts):
        """One of `parts` equal products on a chip: the one dim of which the matrix in place has nothing is split."""
        if self.dataflow == "os":
            m, k, n = self.m / self.rows, self.k / parts, self.n / self.columns
            return _summed_s(self.cluster, m, k, n, parts, self.item_bytes)
        if self.dataflow == "ls":
            return _one_s(self.cluster, self.m / self.rows, self.k / self.columns, self.n / parts, self.item_bytes)
        return _one_s(self.cluster, self.m / parts, self.k / self.rows, self.n / self.columns, self.item_bytes)


def meshslice_s(case, num_slices):
    """Prologue, S - 1 times the longest of an iteration, epilogue (Figure 4, section 3.2.2)."""
    h, v = case.collective("h", num_slices), case.collective("v", num_slices)
    c = case.compute_s(num_slices)
    if num_slices > 1:
        copied = 2 * (case.shard_bytes("h") + case.shard_bytes("v")) / num_slices
        c += case.cluster.compute.slice_copy_exposed * copied / case.cluster.memory.bandwidth_bytes_per_s
    return _pipeline_s(case, num_slices, h, v, c, waits=case.cluster.network.hides_one_collective)


def _steady_s(case, together, c):
    """An iteration of which the product hides one gather, the shorter, and the chip waits for all else."""
    gathers = sorted(time_s for side, time_s in together.items() if time_s and not case.is_output(side))
    sums = [time_s for side, time_s in together.items() if case.is_output(side)]
    return max([c + sum(gathers[1:]) + sum(sums), *gathers[:1]])


def _pipeline_s(case, iterations, h, v, c, *, waits=False):
    """Gathers of an iteration before its product, reductions after it; each beside the product of another."""
    together = case.at_once_s(h=h, v=v)
    steady = _steady_s(case, together, c) if waits else max(*together.values(), c)
    if case.dataflow == "os":
        prologue, epilogue = max(together.values()), c
    elif case.dataflow == "ls":
        prologue, epilogue = v.alone_s, c + h.alone_s
    else:
        prologue, epilogue = h.alone_s, c + v.alone_s
    return prologue + (iterations - 1) * steady + epilogue


def _one_s(cluster, m, k, n, item_bytes):
    """A product that is written once."""
    chip, memory = cluster.compute, cluster.memory.bandwidth_bytes_per_s
    arithmetic = _arithmetic_s(cluster, m, k, n)
    if item_bytes == 4:
        arithmetic *= (1 + chip.accumulate_slowdown) * _idle_cores(chip, m, n)
    busy = arithmetic + chip.output_exposed * item_bytes * m * n / memory
    if not cluster.is_paper_set:
        busy = max(busy, (2 * (m * k + k * n) + item_bytes * m * n) / _MEMORY_SHARES.get(cluster.name, 0.87) / memory)
    return busy + chip.launch_s


def _summed_s(cluster, m, k, n, parts, item_bytes):
    """One of several products that add to one fp32 sum; the first only writes it, and the last is turned to 2 bytes."""
    if parts == 1:
        return _one_s(cluster, m, k, n, item_bytes)
    chip, memory = cluster.compute, cluster.memory.bandwidth_bytes_per_s
    arithmetic = _arithmetic_s(cluster, m, k, n) * (1 + chip.accumulate_slowdown) * _idle_cores(chip, m, n)
    traffic = chip.output_exposed * (4 + 8 * (parts - 1)) * m * n / memory
    cast = 0.0 if item_bytes == 4 else chip.cast_exposed * (4 + item_bytes) * m * n / memory
    return arithmetic + (traffic + cast) / parts + 1.6 * chip.launch_s


# What large passes reach of the memory's bandwidth; a chip that is not known reaches 0.87.
_MEMORY_SHARES = dict.fromkeys(("tpu-v4", "v5e", "v5p", "v6e", "h100", "h200", "b200"), 0.9) | {
    "v100-nvlink": 0.85,
    "cpu": 1.0,
}


def _arithmetic_s(cluster, m, k, n):
    """A GPU's cores compute tiles, the best of four sizes and of so many parts along k; others are slower when thin."""
    chip = cluster.compute
    if chip.num_cores < 2:
        return 2 * m * k * n / chip.effective_flops_per_s * _thin(chip, m, k, n)
    times = []
    for rows in (64, 128):
        for columns in (64, 128):
            tiles = -(-m // rows) * -(-n // columns)
            step = 2 * rows * columns * chip.num_cores / chip.effective_flops_per_s
            if chip.tile_bandwidth_bytes_per_s:
                step = max(step, 2 * (rows + columns) / chip.tile_bandwidth_bytes_per_s)
            for parts in (1, 2, 4, 8, 16):
                if parts > 1 and (k / parts < 128 or tiles * parts > 2 * chip.num_cores):
                    break
                full = tiles * parts / chip.num_cores
                waves = max(1.0, (1 - chip.wave_rounding) * full + chip.wave_rounding * math.ceil(full))
                adding = 4 * parts * m * n / cluster.memory.bandwidth_bytes_per_s + chip.launch_s / 4
                times.append(waves * step * (k / parts + chip.half_speed_contracted) + (adding if parts > 1 else 0.0))
    return min(times)


def _thin(chip, m, k, n):
    slowdown = (
        (k + chip.half_speed_contracted) / k * (m + chip.half_speed_output) / m * (n + chip.half_speed_output) / n
    )
    if not chip.systolic_dim:
        return slowdown
    # Whole arrays along k, and along whichever of m and n wastes less.
    filled = {size: size / chip.systolic_dim / math.ceil(size / chip.systolic_dim) for size in (m, k, n)}
    return slowdown / filled[k] / max(filled[m], filled[n])


def _idle_cores(chip, m, n):
    """Tiles of 128 x 256, or of 128 x 128 at a loss of 15 %, come in waves of one a core."""
    if not chip.num_cores:
        return 1.0
    lost = []
    for width, loss in ((256, 1.0), (128, 1.15)):
        tiles = math.ceil(m / 128) * math.ceil(n / width)
        waves = -(-tiles // chip.num_cores)
        lost.append(loss * waves * chip.num_cores / tiles)
    return min(lost)


def largest_divisor(number, limit):
    return next(divisor for divisor in range(min(number, limit), 0, -1) if number % divisor == 0)


def wang_s(case, num_slices, ring, bidirectional):
    """One direction whole and exposed, the other a ring of SendRecvs beside products, unrolled (2.3.4, 4.2).

    Of P shards an iteration takes g: the first has one in place and gets g - 1, the others get g beside a product. Sums
    that go round are complete g - 1 places after the last product.
    """
    other = "v" if ring == "h" else "h"
    iterations = largest_divisor(case.ring(ring), num_slices)
    group = case.ring(ring) // iterations
    exposed = case.collective(other).alone_s + case.shift(ring, group - 1, bidirectional).alone_s
    c = case.compute_s(iterations)
    return exposed + (iterations - 1) * max(case.shift(ring, group, bidirectional).alone_s, c) + c


def summa_s(case, num_slices, num_packets):
    """Broadcasts and reductions of parts over rings, unrolled (2.3.3, 4.2).

    Of a ring of p chips the last one has nothing to send, so D packets have passed after p + D - 2 stages. The paper
    counts one more. A stage is a SendRecv; or a broadcast is one operation, with the constants of an AllGather.
    """
    num_parts = math.lcm(case.rows, case.columns)
    iterations = largest_divisor(num_parts, num_slices)

    def streamed(side):
        chips = case.ring(side)
        if chips == 1:
            return Op()
        packet_bytes = case.shard_bytes(side) * chips / num_parts / num_packets
        broadcasts, stages = num_parts // iterations, chips + num_packets - 2
        if not case.cluster.network.has_broadcast:
            return case.sends(side, broadcasts * stages, packet_bytes)
        bandwidth, sync_s, launch_s = case.link(side, "reduce_scatter" if case.is_output(side) else "all_gather")
        return Op(broadcasts * (launch_s + stages * sync_s), broadcasts * stages * packet_bytes / bandwidth)

    return _pipeline_s(case, iterations, streamed("h"), streamed("v"), case.compute_s(iterations))


def cannon_s(case):
    """A skew of the inputs, P products beside shifts both ways, and for a moving output a way back (2.3.2).

    Row i goes i places, the shorter way round, so that none goes farther than half the ring.
    """
    side = case.rows
    farthest = max(min(places, side - places) for places in range(side))
    inputs = {way: case.shift(way, farthest) for way in "hv" if not case.is_output(way)}
    outputs = {way: case.shift(way, farthest) for way in "hv" if case.is_output(way)}
    c = case.compute_s(side)
    turn = max(*case.at_once_s(h=case.shift("h", 1), v=case.shift("v", 1)).values(), c)
    skew = max(case.at_once_s(**inputs).values()) + sum(op.alone_s for op in outputs.values())
    return skew + (side - 1) * turn + c
