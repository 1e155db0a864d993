"""Figures from hand-made cells: every number is computed again here."""

from dataclasses import replace

import numpy as np
import pytest

from jaxquard.evaluate.cfp.cells.cell import Role
from jaxquard.evaluate.cfp.cells.labels import chosen_words
from jaxquard.evaluate.cfp.cells.pick import are_some_strategies, first_cell, line_cells
from jaxquard.evaluate.cfp.figures.figure_1 import figure_1
from jaxquard.evaluate.cfp.figures.figure_7 import draw_meshes, draw_throughputs, speedups
from jaxquard.evaluate.cfp.figures.figure_8 import figure_8
from jaxquard.evaluate.cfp.figures.figure_9 import alike_apart, figure_9
from jaxquard.evaluate.cfp.figures.figure_10 import SEAMS, SUM, draw_figure_10, figure_10
from jaxquard.evaluate.cfp.figures.figure_11 import TOO_LARGE, batch_series, depth_series, draw_figure_11, memory_cells
from jaxquard.evaluate.cfp.figures.figure_12 import priced_cells
from tests.evaluate.cfp.made_cells import BASELINES, MIB, OURS, made_cell, made_results


def with_runs(cell, change):
    return replace(cell, runs=tuple(change(run) for run in cell.runs))


def test_figure_1_has_four_configurations_by_volume():
    found = figure_1([made_cell("llama")])
    assert [one.name for one in found] == ["minimum volume (Alpa)", "Megatron", "chosen", "data parallel"]
    assert [one.volume_bytes / MIB for one in found] == [4.0, 5.0, 6.0, 8.0]
    assert found[2].communication_s == pytest.approx(0.2 * 10e-3)


def test_figure_1_fills_up_where_plans_are_the_same():
    cell = replace(made_cell("llama"), chosen="data parallel")
    names = [one.name for one in figure_1([cell])]
    # The strategy of minimum volume that is not one of the others: rows everywhere is what the minimum volume has.
    assert names == ["minimum volume (Alpa)", "Megatron", "rows, rows, rows, columns", "data parallel"]


def test_figure_1_needs_llama():
    assert figure_1([made_cell("gpt")]) == ()


def test_speedups_are_ratios_of_measured_times():
    cells = [made_cell("gpt"), made_cell("moe", scale=3.0)]
    found = speedups(cells, "volume")
    assert found.ratios == pytest.approx((1.5, 1.5))
    faster = with_runs(cells[0], lambda run: replace(run, measured_s=12e-3) if run.name == "volume" else run)
    found = speedups([faster, cells[1]], "volume")
    assert found.mean == pytest.approx(np.exp(np.mean(np.log([1.2, 1.5]))))
    assert found.most == pytest.approx(1.5)


def test_a_plan_over_the_limit_does_not_count():
    assert speedups([made_cell(limit_bytes=31 * MIB)], "volume").ratios == ()
    assert speedups([made_cell(limit_bytes=33 * MIB)], "volume").mean == pytest.approx(1.5)


def test_figure_8_is_bytes_over_time():
    found = {one.plan: one for one in figure_8([made_cell("bert")])}
    assert list(found) == ["chosen", "data parallel", "megatron", "volume"]
    time_ms, _, compiled, _, share = BASELINES["megatron"]
    assert found["megatron"].bandwidth_bytes_per_s == pytest.approx(compiled * MIB / (share * time_ms * 1e-3))


def test_figure_8_leaves_out_what_the_profiler_does_not_measure():
    assert figure_8([with_runs(made_cell(), lambda run: replace(run, communication_s=None))]) == ()


def test_figure_9_is_in_the_order_of_volume():
    (found,) = figure_9([made_cell("moe", num_strategies=30)])
    volumes = [run.volume_bytes for run in found.runs]
    assert volumes == sorted(volumes)
    assert len(volumes) == 20
    assert all(run.role is Role.STRATEGY for run in found.runs)
    ran = sorted((run for run in found.cell.runs if run.role is Role.STRATEGY), key=lambda run: run.volume_bytes)
    best = min(ran, key=lambda run: run.time_s)
    assert ran[found.fastest - 1] == best
    assert found.fastest_volume == pytest.approx(best.volume_bytes / ran[0].volume_bytes)


def test_like_volumes_apart():
    (found,) = figure_9([made_cell("bert")])
    runs = tuple(
        replace(run, volume_bytes=volume, communication_s=time_s)
        for run, volume, time_s in zip(found.runs, (100.0, 104.0, 130.0, 131.0), (1.0, 3.0, 30.0, 20.0), strict=False)
    )
    assert alike_apart(replace(found, runs=runs)) == pytest.approx(3.0)
    assert alike_apart(replace(found, runs=runs[1:3])) is None


def test_figure_10_is_the_root_of_the_mean_squared_error():
    found = {one.way: one for one in figure_10([made_cell("gpt")])}
    cell = found[SUM].cell
    measured = np.array([run.time_s for run in cell.runs])
    errors = np.array([run.sum_s for run in cell.runs]) - measured
    assert found[SUM].rmse_s == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert found[SUM].rmse == pytest.approx(np.sqrt(np.mean(errors**2)) / measured.mean())
    # Strategies have no prediction of their own.
    assert len(found[SEAMS].names) == 1 + len(BASELINES)
    finalists = np.array([run.time_s for run in cell.runs if run.role is not Role.STRATEGY])
    assert found[SEAMS].rmse_s == pytest.approx(np.sqrt(np.mean((0.04 * finalists) ** 2)))


def test_figure_10_shows_deep_steps_beside_those_of_the_grid():
    grid, wide, deep = (
        made_cell("gpt"),
        made_cell("gpt", model_dim=512),
        made_cell("gpt", num_layers=6, num_strategies=6),
    )
    found = figure_10([deep, grid, wide])
    assert [one.cell for one in found] == [grid, grid, deep, deep]
    assert len(draw_figure_10(found, x_name="measured, ms")) == 2
    # They are no part of the grid: a chart of sizes would have two alike.
    assert line_cells([deep, grid, wide]) == [grid, wide]


def test_meshes_of_the_same_model_share_a_chart():
    cells = [
        made_cell("gpt"),
        made_cell("gpt", num_layers=6),
        made_cell("gpt", mesh=(2, 4)),
        made_cell("gpt", model_dim=64, mesh=(2, 4)),
        made_cell("bert"),
    ]
    first, second = draw_meshes(cells)
    assert [text in first for text in ("256 wide", "1×8", "2×4", "6 layers")] == [True, True, True, False]
    assert [text in second for text in ("64 wide", "1×8", "2×4")] == [True, False, True]


def test_ranks_as_scipy_has_them():
    from scipy.stats import spearmanr  # Takes more than a second, for every worker that collects tests.

    values = iter([3.0, 1.0, 2.0, 2.0, 9.0, 4.0, 5.0] * 10)
    cell = with_runs(made_cell("gpt"), lambda run: replace(run, sum_s=next(values)))
    found = next(one for one in figure_10([cell]) if one.way == SUM)
    assert found.correlation == pytest.approx(spearmanr(found.predicted_s, found.whole_s).statistic)


def test_figure_11_takes_series_of_one_limit():
    cells = memory_cells(made_results().cells)
    assert [cell.spec.batch_size for cell in batch_series(cells)] == [8, 32, 64]
    assert [cell.spec.num_layers for cell in depth_series(cells)] == [2, 8]
    only = [cell for cell in made_results().cells if cell.spec.memory_limit_bytes is None]
    assert [cell.spec.memory_limit_share for cell in memory_cells(only)] == [0.7]


def test_figure_12_leaves_out_known_prices():
    cells = [made_cell("gpt"), replace(made_cell("bert"), num_known=20), made_cell("gpt", mesh=(2, 4))]
    assert priced_cells(cells) == [cells[0]]
    # A few of another model's are no matter.
    assert priced_cells([replace(cells[0], num_known=10)]) != []


def test_figures_rather_show_cells_with_more_strategies():
    some, every, none = (
        replace(cell, spec=replace(cell.spec, num_strategies=count, batch_size=batch_size))
        for cell, count, batch_size in zip([made_cell()] * 3, (12, None, 0), (8, 16, 32), strict=True)
    )
    assert first_cell([none, some, every], "gpt") == every
    assert first_cell([none, some], "gpt") == some
    assert (are_some_strategies(some), are_some_strategies(every), are_some_strategies(none)) == (True, False, False)


def test_figure_11_where_nothing_fits():
    cell = replace(made_cell("llama", limit_bytes=MIB), chosen=None, failure="nothing fits")
    (chart,) = draw_figure_11([cell])
    assert chart.count(f">{TOO_LARGE}</text>") == 3


def test_a_chart_of_cells_in_which_nothing_ran():
    cell = with_runs(made_cell(), lambda run: replace(run, measured_s=None, coarse_s=None))
    (chart,) = draw_throughputs([cell])
    assert "<svg" in chart


def test_a_chosen_plan_that_is_a_baseline_is_called_so():
    cell = made_cell()
    assert chosen_words(cell) == "searched"
    same = cell.run("megatron")
    alike = with_runs(cell, lambda run: replace(same, name=run.name) if run.name == cell.chosen else run)
    assert chosen_words(alike) == "Megatron"
    stored = with_runs(cell, lambda run: replace(run, storage="zero 3") if run.name == cell.chosen else run)
    assert chosen_words(stored) == "searched, state as ZeRO-3"
    assert chosen_words(replace(cell, chosen=None)) == "nothing fits"


def test_the_chosen_plan_is_a_run_of_its_cell():
    cell = made_cell()
    assert cell.best.measured_s == pytest.approx(OURS[0] * 1e-3)
    assert replace(cell, chosen=None).best is None
