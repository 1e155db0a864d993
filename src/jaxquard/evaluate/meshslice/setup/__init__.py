"""The setup of MeshSlice's evaluation (section 4): models, constants of the cluster, and the tuner of the figures."""
