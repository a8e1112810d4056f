"""Losses and regularisers by name: in run files, estimators and records."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from click.testing import CliRunner

from dynadp.cli import main
from dynadp.errors import DeclarationError
from dynadp.estimators import NetworkClassifier
from dynadp.problem.losses import HuberHinge, Logistic, Loss, SmoothedHinge
from dynadp.problem.regularizers import Regularizer, SmoothElasticNet, SquaredL2
from dynadp.runs.folder import load_run
from dynadp.runs.model import load_model

FIXTURES = Path(__file__).parents[1] / "fixtures" / "v0.1.0"


@dataclass(frozen=True)
class Root(Loss):
    """L(z) = (sqrt(h^2 + u^2) + u)/2, u = m - z; L'' <= 1/(2h)."""

    softness: float = 1.0
    name: ClassVar[str] = "test_registry_root"

    @property
    def c1(self):
        return 0.5 / self.softness

    def value(self, z):
        return 0.5 * (np.hypot(self.softness, 1 - z) + (1 - z))

    def slope(self, z):
        return -0.5 * ((1 - z) / np.hypot(self.softness, 1 - z) + 1)

    def curvature(self, z):
        return 0.5 * self.softness**2 * np.hypot(self.softness, 1 - z) ** -3.0


@pytest.mark.parametrize(
    "made",
    [
        Logistic(),
        Logistic(3.0),
        SmoothedHinge(0.3, 2.0),
        HuberHinge(0.2, 1.5),
        Root(2.0),
        SquaredL2(),
        SmoothElasticNet(2.0, 0.3),
    ],
    ids=repr,
)
def test_a_description_is_read_back(made):
    family = Loss if isinstance(made, Loss) else Regularizer
    again = family.from_description(made.describe())
    assert type(again) is type(made)
    assert again == made
    assert family.from_description(made.declaration()) == made


def test_parameters_that_are_no_dataclass_fields_are_described():
    class Named(SquaredL2):
        name = "test_registry_plain"

    class Wide(Loss):
        name = "test_registry_wide"
        c1, value, slope, curvature = 1.0, None, None, None

        def __init__(self, width, **more):
            self.width = width

    assert Wide(3).describe() == {"name": "test_registry_wide", "width": 3, "c1": 1.0}
    assert Loss.from_description(Wide(3).describe()).width == 3
    assert isinstance(Regularizer.from_description({"name": "test_registry_plain"}), Named)


def test_a_name_belongs_to_one_class():
    def define(name_of_class):
        return type(name_of_class, (SquaredL2,), {"name": "test_registry_once"})

    define("First")
    again = define("First")  # as when a module is imported anew
    assert Regularizer.named("test_registry_once") is again
    with pytest.raises(DeclarationError, match=r"two classes have the name .*First and .*Second"):
        define("Second")
    assert Regularizer.named("test_registry_once") is again


def test_a_variant_without_a_name_of_its_own_does_not_take_its_base_classes_place():
    class Variant(Root):
        pass

    assert Loss.named("test_registry_root") is Root


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        DeclarationError, match="regularizer is 'l3'; expected a Regularizer or one"
    ):
        Regularizer.named("l3")
    with pytest.raises(DeclarationError, match=r"'l3'; .*logistic.*once its module is imported"):
        Loss.from_description({"name": "l3"})


def test_the_estimator_takes_a_loss_of_ones_own_by_name():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (60, 2)), np.arange(60) % 2
    X[:, 0] += 2 * y - 1
    by_name = NetworkClassifier(mechanism=None, loss="test_registry_root").fit(X, y)
    given = NetworkClassifier(mechanism=None, loss=Root()).fit(X, y)
    np.testing.assert_array_equal(by_name.coef_, given.coef_)
    with pytest.raises(DeclarationError, match="loss 'test_registry_root' has no margin"):
        NetworkClassifier(mechanism=None, loss="test_registry_root", margin=2.0).fit(X, y)


def test_a_run_file_its_record_and_its_report_take_a_loss_of_ones_own(tmp_path):
    for name in ("all.csv", "schema.toml"):
        shutil.copy(FIXTURES / name, tmp_path)
    text = (FIXTURES / "dual.toml").read_text()
    old = 'loss = { name = "huber_hinge", width = 0.5 }'
    assert old in text
    own = 'loss = { name = "test_registry_root", softness = 2 }'
    (tmp_path / "run.toml").write_text(text.replace(old, own))
    run = ("train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out"))
    for words in (run, ("report", str(tmp_path / "out"), "-o", str(tmp_path / "report.html"))):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
    described = {"name": "test_registry_root", "softness": 2.0, "c1": 0.25}
    assert load_run(tmp_path / "out").plan["loss"] == described
    assert load_model(tmp_path / "out").loss == described
    assert "test_registry_root" in (tmp_path / "report.html").read_text()
