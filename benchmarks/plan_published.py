"""Our plans beside the published ones: each row of published_steps.csv, and Llama 3 405B on 16,384 chips.

    python -m benchmarks.plan_published [--rows r0001 r0010 ...]

All times are predicted, with the constants of the framework that ran the row. `ratio` is the published configuration's
time over ours, `alike` that over the fastest with the same recomputation, storage, sequence and context parallelism;
`rank` is its place among all strategies that fit, `term` what ours does better.
"""

import argparse
import time

from jaxquard.evaluate.published.plan_rows import plan_row, strategy_text
from jaxquard.evaluate.published.rows import DataKind, own_files
from jaxquard.planner.named.plan_named import plan_named

_WANTED_S, _WANTED_MFU = 60, (0.38 * 0.9, 0.43 * 1.1)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_published", description="Plans published steps.")
    parser.add_argument("--rows", nargs="*", help="ids of rows; all if none is given")
    wanted = parser.parse_args(arguments).rows
    (file,) = [file for file in own_files() if file.kind is DataKind.STEPS]
    heads = (
        "row",
        "system, model, chips",
        "published, s",
        "theirs, s",
        "ours, s",
        "ratio",
        "alike",
        "rank",
        "term",
        "ours",
    )
    print(f"| {' | '.join(heads)} |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |")
    ratios = []
    for row in file.rows:
        if wanted and row["id"] not in wanted:
            continue
        planned = plan_row(row)
        ratios.append((planned.ratio, planned.alike_ratio))
        rank = f"{planned.rank} of {planned.num_strategies:,}" + ("" if planned.in_space else ", outside")
        cells = (
            planned.name,
            f"{planned.system}, {planned.model}, {planned.num_devices}",
            f"{planned.measured_s:.2f}",
            f"{planned.published.time_s:.2f}",
            f"{planned.ours.time_s:.2f}",
            f"{planned.ratio:.3f}",
            f"{planned.alike_ratio:.3f}",
            rank,
            planned.deciding,
            strategy_text(planned.ours.parallelism),
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    slower = sum(ratio < 1 for ratio, _ in ratios)
    near, alike = (sum(row[place] <= 1.05 for row in ratios) for place in (0, 1))
    print(
        f"\n{len(ratios)} rows: ours is slower in {slower}; theirs within 5 % of ours in {near}, of alike in {alike}."
    )
    if not wanted:
        plan_llama()


def plan_llama() -> None:
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    plan = plan_named("llama3:405b", "h100-8x2048", global_batch=2048)
    spent_s, spent_cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    low, high = _WANTED_MFU
    print(
        f"llama3:405b on h100-8x2048: {spent_s:.1f} s, {spent_cpu_s:.1f} s of one core (wanted {_WANTED_S} s). A step "
        f"takes {plan.time_s:.2f} s, MFU "
        f"{plan.mfu:.3f} (wanted {low:.3f} to {high:.3f}), {plan.log.num_seen:,} strategies, {plan.log.num_priced:,} "
        "priced"
    )
    for baseline in plan.baselines:
        print(f"  {baseline.name}: {baseline.time_s:.2f} s, MFU {baseline.mfu or 0:.3f}. {baseline.note}")


if __name__ == "__main__":
    main()
