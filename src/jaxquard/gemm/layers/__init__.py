"""Fully connected layers with gradients on a mesh (MeshSlice, section 3.2.1, table 1).

In: activations, weights, and a plan or the words of a user.
Out: the layer's product, whose backward leaves the same matrix stationary; shardings to place the matrices; plan files.
"""
