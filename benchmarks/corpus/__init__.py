"""The parts of `benchmarks.plan_corpus`: problems, the workers that plan and price them, and the judgement."""
