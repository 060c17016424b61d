# EDIT-START
import numpy as np

def construct_packing():
    """Return centers (26, 2), radii (26,) and the sum of the radii """
    side, radius, small = 5, 0.1, 0.03
    centers, radii = [], []
    for i in range(side):
        for j in range(side):
            centers.append([(i + 0.5) / side, (j + 0.5) / side])
            radii.append(radius)
    centers.append([0.4, 0.4])
    radii.append(small)
    return np.array(centers), np.array(radii), sum(radii)

# EDIT-END