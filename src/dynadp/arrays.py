"""Names for the arrays that travel through the package."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Array = NDArray[np.float64]
Rows = Array | csr_array
