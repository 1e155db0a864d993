import jax

from benchmarks.sliced_products import describe, measure
from jaxquard.calibrate.sampling import Effort
from jaxquard.cluster import ProductSample


def test_every_shape_is_measured_as_a_calibration_does(capsys):
    effort = Effort(
        shard_sizes_bytes=(), ms=(16, 32), ks=(32,), ns=(16,), slices=(1, 2), rounds=1, sample_s=0.0, longest_s=1.0
    )
    samples = measure(jax.devices()[0], effort)
    assert [(s.m, s.k, s.n, s.num_slices) for s in samples] == [
        (16, 32, 16, 1), (16, 32, 16, 2), (32, 32, 16, 1), (32, 32, 16, 2),
    ]  # fmt: skip
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_line():
    samples = [ProductSample(m=1000, k=1000, n=1000, num_slices=s, time_s=1e-3 * s) for s in (1, 2)]
    assert describe(samples) == "(1000, 1000, 1000): 2 TFLOP/s whole; S=2 2.00"
