from .classifier import NetworkClassifier as NetworkClassifier
from .regressor import NetworkRegressor as NetworkRegressor
