from .classifier import NetworkClassifier as NetworkClassifier
