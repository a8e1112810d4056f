"""In a scikit-learn pipeline: steps that learn from rows would leak them, so only fixed
transformations stand before it.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dynadp import NetworkClassifier

X, y = load_breast_cancer(return_X_y=True)
published = np.array(
    [30, 40, 190, 2500, 0.2, 0.4, 0.5, 0.25, 0.35, 0.1] * 3, dtype=float
)  # public scales, known beforehand
scale = FunctionTransformer(
    lambda rows: np.clip(rows / published, 0, 2) - 0.5
)  # looks at one row at a time
model = make_pipeline(
    scale, NetworkClassifier(epsilon=4.0, delta=1e-4, data_norm=4.0, nodes=3, classes=[0, 1])
)
model.fit(X[::2], y[::2])
print(f"{model.score(X[1::2], y[1::2]):.1%} right on the other half")
print(model[-1].privacy_["statement"])
