"""LPLB's own solver: five affine-scaling steps with a big M, from ones, in double precision.

The original works in single precision, and its starting point is not published: ones give what was recorded.
"""

from __future__ import annotations

import numpy as np

BIG, STEP, STEPS = 1000.0, 0.999, 5


def five_steps(dup, fixed, r2o):
    """Share kept (n, D) in one group, and whether the original would use it; loads are shares of the largest."""
    group, directions = dup.shape
    number = group * directions
    own = np.arange(number).reshape(group, directions)
    copied = r2o * directions + np.arange(directions)
    # Kept, handed over, the largest load, and what each rank lacks of it.
    matrix = np.zeros((group + number, 2 * number + 1 + group))
    for rank in range(group):
        for d in range(directions):
            matrix[rank, own[rank, d]] += dup[rank, d]
            matrix[rank, number + copied[rank, d]] += dup[r2o[rank, d], d]
        matrix[rank, 2 * number] = -1
        matrix[rank, 2 * number + 1 + rank] = 1
    matrix[group:, :number] = matrix[group:, number : 2 * number] = np.eye(number)
    wanted = np.concatenate([-fixed, np.ones(number)])
    point = np.ones(matrix.shape[1] + 1)
    cost = np.zeros(len(point))
    cost[2 * number], cost[-1] = 1, BIG
    whole = np.column_stack([matrix, wanted - matrix @ point[:-1]])
    for _ in range(STEPS):
        scaled = whole * point
        prices = np.linalg.lstsq(scaled @ scaled.T, scaled @ (point * cost), rcond=None)[0]
        direction = point * (cost - whole.T @ prices)
        point = point * (1 - STEP * direction / direction.max())
    residual = np.abs(matrix @ point[:-1] - wanted).max()
    return point[:number].reshape(group, directions), bool(
        direction.max() < 0.1 and point[-1] < 1e-4 and residual < 0.05
    )
