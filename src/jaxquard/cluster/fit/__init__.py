"""Constants of a cluster from measured times.

In: samples of collectives, products and other kernels. Out: fits, each with its constants and its residuals
(`median_error`, `worst_error`), by least squares that outliers hardly move (`fit_robustly`).
"""
