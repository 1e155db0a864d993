"""Parts that the evaluations of all papers share: claims, verdicts, the papers' numbers, number texts, result files."""
