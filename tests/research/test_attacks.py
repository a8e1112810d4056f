"""The attack gallery: what succeeds must succeed, what must fail fails, and the tests notice noise
that is left out.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import norm

from dynadp._intervals import wilson
from dynadp.cli import main
from dynadp.cli.attacks import words
from dynadp.data.columns import Categorical, Numeric
from dynadp.data.datasets.synthetic import census
from dynadp.data.schema import Label, Schema
from dynadp.errors import DeclarationError
from dynadp.mechanisms import dual, gaussian, sampling
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import MomentNoise, Sum, packed
from dynadp.problem.objective import StackedProblem
from dynadp.problem.regularizers import SquaredL2
from dynadp.problem.solver import solve
from dynadp.report.attacks import membership as membership_picture
from dynadp.research.attacks import Setting, gallery, membership, reconstruct, small_node
from dynadp.research.attacks.inference import FALSE_POSITIVES, _curve, allowed
from dynadp.research.attacks.neighbours import look
from dynadp.research.attacks.reconstruction import _texts, decode
from dynadp.research.attacks.sums import SumTranscript
from dynadp.research.attacks.transcript import dense, listen, log_density

SUMS = [Sum(), Sum(second_moment=True)]
SEALED = Sealed(honest=2, spares=0)
PRIVATE = [(Dual(), 1.0), (Primal(), 1.0), (Primal(noise="gaussian"), 0.14), (SEALED, 0.14)]
PRIVATE += [(mechanism, 0.14) for mechanism in SUMS]
# with less to learn from each message
LESS = [(Dual(), 0.1), (Primal(), 0.1), *((mechanism, 0.014) for mechanism in SUMS)]
PRIVATE += [pytest.param(*case, marks=pytest.mark.slow) for case in LESS]
SHORT = Setting(rounds=4)


@pytest.fixture(scope="module")
def made():
    return census(300, seed=3, nodes=3), census(1000, seed=4, nodes=1, test_rows=0).train


@pytest.fixture
def no_noise(monkeypatch):
    def silent(draws, purpose, nodes, round_, replicas, dimension):
        return np.zeros((len(nodes), replicas, dimension))

    for place in (dual, sampling):
        monkeypatch.setattr(place, "l2_laplace", silent)
    zeros = lambda rng, sigma, size: np.zeros(size, np.int64)  # noqa: E731
    monkeypatch.setattr(gaussian, "discrete_gaussian", zeros)


# --------------------------------------------------------------------------------------------------
# reconstruction


def test_algorithm_1_gives_every_attribute_of_every_row_away(made):
    found = reconstruct(*made, None, rows=100)
    assert found.attributes == 11
    assert found.recovered == 11
    assert set(found.shares) == {*(column.name for column in made[0].schema.columns), "income"}
    assert all(share == 1 for share, _ in found.shares.values())
    assert all(truth == recovered for truth, recovered, _ in found.example.values())
    assert found.guessing < 7
    assert found.to_json()["epsilon"] is None


def test_one_round_of_algorithm_1_is_enough(made):
    assert reconstruct(*made, None, setting=Setting(rounds=1), rows=20).recovered == 11


@pytest.mark.first(4)
@pytest.mark.parametrize(("mechanism", "alpha"), PRIVATE)
def test_private_runs_give_no_more_than_guessing(made, mechanism, alpha):
    found = reconstruct(*made, mechanism, alpha, setting=Setting(rounds=10), rows=30)
    # a row's count has a standard deviation of about 1.5, that of its difference from guessing is
    # smaller: 0.8 is three
    # standard errors of the mean of 30 rows
    assert found.recovered <= found.guessing + 0.8
    assert found.algebra < found.guessing
    assert np.isfinite(found.epsilon)


@pytest.mark.parametrize(
    ("mechanism", "alpha"), [(Dual(), 2000.0), (Primal(), 2000.0), (Sum(), 15.0), (SUMS[1], 15.0)]
)
def test_the_same_adversary_wins_when_alpha_is_absurd(made, mechanism, alpha):
    found = reconstruct(*made, mechanism, alpha, setting=SHORT, rows=20)
    assert found.recovered > found.guessing + 1.5


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("mechanism", [Dual(), *SUMS], ids=str)
def test_a_run_whose_noise_was_forgotten_gives_rows_away(made, mechanism):
    assert reconstruct(*made, mechanism, 1.0, setting=SHORT, rows=10).algebra == 11


@pytest.mark.usefixtures("no_noise")
def test_sums_without_noise_give_all_rows_of_a_small_node_away():
    few, population = census(15, seed=2, nodes=3), census(500, seed=5, nodes=1, test_rows=0).train
    assert small_node(few, population, Sum(), 1.0).algebra > 10


def test_rows_of_a_small_node_come_from_its_messages_alone():
    few, population = census(15, seed=2, nodes=3), census(500, seed=5, nodes=1, test_rows=0).train
    found = small_node(few, population, None)
    assert (found.rows, found.recovered) == (5, 11)
    assert found.knows == "no row"
    for mechanism in (Dual(), Primal(), Sum()):
        assert small_node(few, population, mechanism, 1.0).recovered < found.guessing


@pytest.mark.parametrize(
    "update", [{}, {"centre": tuple(np.linspace(-0.3, 0.3, 50))}, {"scaling": "unit"}]
)
def test_decoding_inverts_the_schema(made, update):
    data = made[0]
    schema = data.schema.model_copy(update=update)
    truth, rows = _texts(schema, data.train), dense(schema.shard(data.train))
    for i in range(0, 300, 7):
        found = decode(schema, 0.37 * rows[i])
        assert found == {name: cells[i] for name, cells in truth.items()}


def test_decoding_knows_its_limits():
    label = Label(name="y", negative="a", positive="b")
    word = Categorical(name="word", values=("x", "y"))
    schema = Schema(columns=(word,), label=label)
    assert decode(schema, np.array([0.0, 0.0, 0.5])) == {"word": "(other)", "y": "b"}
    assert decode(schema, np.array([0.0, -0.5, -0.5])) == {"word": "y", "y": "a"}
    with pytest.raises(DeclarationError, match="no intercept"):
        decode(Schema(columns=(word,), label=label, intercept=0), np.zeros(2))
    square = Numeric(name="v", low=0, high=1, encode=("square",))
    with pytest.raises(DeclarationError, match="'linear' first"):
        decode(Schema(columns=(square,), label=label), np.ones(2))


# --------------------------------------------------------------------------------------------------
# likelihood


@pytest.mark.parametrize("mechanism", [Dual(), Primal()])
@pytest.mark.parametrize("replicas", [1, 4])
def test_the_likelihood_is_that_of_the_whole_problem(made, mechanism, replicas):
    """Against argmins and determinants of the problem with all rows, solved and taken anew."""
    shards, s, alpha = made[0].shards(), SHORT, 0.5
    signed = dense(shards[1])
    rest, candidates = signed[1:], np.stack([signed[0], -signed[0], dense(shards[0])[0]])
    told = listen(shards, mechanism, alpha, s, replicas, seed=7)
    found = log_density(told, rest, candidates)
    assert found.shape == (replicas, 3, 4)
    exact = np.empty_like(found)
    for j, a in enumerate(candidates):
        problem = StackedProblem(
            [np.vstack([rest, a])], s.loss, SquaredL2(), s.C, s.rho, storage="dense"
        )
        for n, heard in enumerate(told.heard()):
            for k in range(replicas):
                V, b = heard.V[:, k : k + 1], heard.b[:, k : k + 1]
                if not heard.noise.inside:
                    g = solve(problem, heard.q, b, np.full((1, 1), 1e-9), V).point
                    exact[k, j, n] = -heard.noise.outer[0, 0] * np.linalg.norm(V - g)
                else:
                    H = problem.hessians(V, problem.rows.margins(V))[0, 0] + heard.q[0, 0] * np.eye(
                        51
                    )
                    e = np.linalg.norm(problem.gradient(V, heard.q, b)) * 100
                    exact[k, j, n] = -heard.noise.inner[0, 0] * e + np.linalg.slogdet(H)[1]
    differences = (found - found[:, :1]) - (
        exact - exact[:, :1]
    )  # up to what the candidate leaves alone
    np.testing.assert_allclose(differences, 0, atol=2e-4)
    assert np.abs(exact - exact[:, :1]).max() > 0.05


@pytest.mark.parametrize("mechanism", SUMS, ids=str)
def test_the_likelihood_of_sums_is_that_of_all_rows(made, mechanism):
    """Against sums over all rows in plain arithmetic: they differ by the rounding of rows alone."""
    shards, s, mu = made[0].shards(), SHORT, 0.5
    signed = dense(shards[1])
    rest, candidates = signed[1:], np.stack([signed[0], -signed[0], dense(shards[0])[0]])
    told = listen(shards, mechanism, mu, s, 3, seed=7)
    found = log_density(told, rest, candidates)
    assert found.shape == (3, 3, 4)
    exact = np.empty_like(found)
    for j, a in enumerate(candidates):
        rows = np.vstack([rest, a])
        for n, (point, V, noise) in enumerate(told.heard()):
            z = point.z
            if isinstance(noise, MomentNoise):
                g, deviation = packed(rows.T @ rows), np.sqrt(2.0) / mu
                off = (V - g) * np.where(np.arange(len(g)) < 51, 1.0, np.sqrt(2.0))
            else:
                g, deviation = s.loss.slope(z @ rows.T) @ rows, 2.0 / mu
                off = V - g
            exact[:, j, n] = -np.sum(off**2, axis=-1) / (2 * deviation**2)
    differences = (found - found[:, :1]) - (exact - exact[:, :1])
    np.testing.assert_allclose(differences, 0, atol=2e-3)
    assert np.abs(exact - exact[:, :1]).max() > 0.1


def test_the_points_of_sums_are_those_of_the_run(made):
    """Whoever hears all messages stands where the nodes stand."""
    told = listen(made[0].shards(), SUMS[1], 1.0, SHORT, 2, seed=7)
    points = [point.z for point, _, _ in told.heard()]
    assert not points[0].any()
    assert not points[1].any()  # the second moment moves nothing
    assert points[2].any()
    assert (points[3] != points[2]).any()


def test_a_likelihood_ratio_averages_to_one(made):
    """E[q/p] = 1 under p: a wrong law of the noise would not keep it."""
    shards = made[0].shards()
    signed = dense(shards[1])
    pair = np.stack([signed[0], -signed[0]])
    for mechanism, alpha in ((Dual(), 1.0), (Primal(), 1.0), *((one, 0.2) for one in SUMS)):
        told = listen(shards, mechanism, alpha, SHORT, 600, seed=1)
        density = log_density(told, signed[1:], pair)
        ratio = np.exp((density[:, 1] - density[:, 0]).sum(axis=-1))
        assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(len(ratio))
        assert ratio.std() > 0.1


# --------------------------------------------------------------------------------------------------
# membership


def test_algorithm_1_tells_everybody_who_is_in(made):
    for found in membership(made[0].shards(), None).values():
        assert (found.auc, found.right, found.caught) == (1, 1, 1)
        assert (found.interval.lower, found.interval.upper) == (1, 1)  # nothing is drawn
        assert found.odds == np.inf
        assert found.to_json()["odds"] is None


@pytest.mark.first(4)
@pytest.mark.parametrize(("mechanism", "alpha"), PRIVATE)
def test_private_runs_stay_below_what_the_accountant_allows(made, mechanism, alpha):
    runs = 400
    found = membership(made[0].shards(), mechanism, alpha, setting=Setting(rounds=10), runs=runs)
    for view in found.values():
        seen, bound = np.array(view.true_positives), np.array(view.bound)
        # both the share and the threshold are drawn from so many runs: four standard errors of each
        slack = 4 * np.sqrt(2 * np.maximum(bound * (1 - bound), 1 / runs) / runs) + 2 / runs
        assert (seen <= bound + slack).all()
        assert view.right <= view.right_bound + 4 * 0.5 / np.sqrt(2 * runs)
        ends = view.interval.lower, view.interval.upper
        assert ends == wilson(view.right, 2 * runs)
        assert ends[0] < view.right < ends[1]
        assert view.to_json()["interval"] == {"lower": ends[0], "upper": ends[1]}
        assert view.odds_high < np.exp(view.epsilon) * 1.5
        assert (view.runs, view.rounds, view.alpha) == (runs, 10, alpha)
    if mechanism.algorithm == "sum":  # all messages go to all
        assert found["neighbour"].right == found["transcript"].right


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("mechanism", [Dual(), Primal(), Sum()], ids=str)
def test_noise_that_is_forgotten_breaks_the_bound(made, mechanism):
    found = membership(made[0].shards(), mechanism, 1.0, setting=SHORT, runs=50)["transcript"]
    assert found.right == 1 > found.right_bound
    assert found.interval.lower > found.right_bound
    assert found.caught == 1 > found.caught_bound


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Dual(), Primal()])
def test_the_whole_transcript_is_nearly_as_telling_as_it_may_be(made, mechanism):
    """Gaussian with mu = sqrt(T alpha^2/d): the attack must come near it, or a bound above it means
    nothing.
    """
    found = membership(made[0].shards(), mechanism, 1.0, runs=4000)
    best = norm.cdf(np.sqrt(20 / 51 / 2))
    assert best - 0.06 < found["transcript"].auc < best + 0.02
    assert 0.53 < found["neighbour"].auc < found["transcript"].auc


def test_the_transcript_of_sums_is_as_telling_as_it_may_be(made):
    """Opposite rows whose slopes are nearly 1 move each sum by nearly 2: the area under the curve
    is that of a Gaussian with mu = sqrt(T) mu(n), but for draws and slopes.
    """
    found = membership(made[0].shards(), Sum(), 0.2, setting=Setting(rounds=10), runs=2000)
    best = norm.cdf(0.2 * np.sqrt(10 / 2))
    assert best - 0.07 < found["transcript"].auc < best + 0.02


# --------------------------------------------------------------------------------------------------
# sealed sums


def seen(view, **more):
    return Setting(**{"rounds": 4, "sealed_view": view, **more})


def test_one_sealed_letter_gives_what_guessing_gives(made):
    """The likeliest value of an attribute is the population's, and the algebra reads noise."""
    found = reconstruct(*made, SEALED, 15.0, setting=seen("letter"), rows=20)
    assert found.recovered == found.guessing
    assert found.algebra < found.guessing - 1
    assert (found.epsilon, found.seen) == (0.0, "letter")
    both = membership(made[0].shards(), SEALED, 15.0, setting=seen("letter"), runs=50)
    for one in both.values():
        assert (one.right, one.auc, one.odds) == (0.5, 0.5, 1.0)


def test_a_letter_read_as_if_it_had_no_masks_is_a_coin_toss(made):
    """With mu = 15 the sum in it would be plain to see."""
    shards, runs = made[0].shards(), 1000
    signed = dense(shards[1])
    row = int(np.argmax(np.linalg.norm(signed, axis=1)))
    pair, rest = np.stack([signed[row], -signed[row]]), np.delete(signed, row, axis=0)
    told = {v: listen(shards, SEALED, 15.0, seen(v), runs, seed=2) for v in ("letter", "node")}
    right = {}
    for view, one in told.items():
        density = SumTranscript.log_density(one, rest, pair).sum(axis=-1)
        right[view] = np.mean(density[:, 0] > density[:, 1])
    assert abs(right["letter"] - 0.5) < 5 * 0.5 / np.sqrt(runs)
    assert right["node"] == 1


@pytest.mark.slow
def test_more_colluders_learn_more_and_no_more_than_is_stated(made):
    """mu sqrt(h): with nobody left to hide behind, a node has its own noise. The area under the
    curve is that of a Gaussian with this mu, but for draws and slopes.
    """
    shards, mu, rounds = made[0].shards(), 0.2, 10
    areas = {}
    for view, h in (("sum", 1), ("node", 2)):
        found = membership(shards, SEALED, mu, setting=seen(view, rounds=rounds), runs=2000)
        one = found["transcript"]
        best = norm.cdf(mu * np.sqrt(h) * np.sqrt(rounds / 2))
        assert best - 0.09 < one.auc < best + 0.02
        assert one.right <= one.right_bound + 4 * 0.5 / np.sqrt(4000)
        areas[view], events = one.auc, listen(shards, SEALED, mu, seen(view), 2, 0).events
        assert [e.mu for e in events] == pytest.approx([mu * np.sqrt(h)] * 4)
    assert areas["node"] > areas["sum"] + 0.02


def test_the_same_adversaries_win_when_mu_is_absurd(made):
    for view in ("sum", "node"):
        found = reconstruct(*made, SEALED, 15.0, setting=seen(view), rows=20)
        assert found.recovered > found.guessing + 1.5


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("view", ["sum", "node"])
def test_sealed_sums_without_noise_give_rows_away_and_letters_do_not(made, view):
    """Masks hide one node's part, and no row in the sum."""
    assert reconstruct(*made, SEALED, 1.0, setting=seen(view), rows=10).algebra == 11
    assert reconstruct(*made, SEALED, 1.0, setting=seen("letter"), rows=10).algebra < 5


def test_a_view_that_is_none(made):
    with pytest.raises(DeclarationError, match="expected 'letter', 'sum', 'node'"):
        reconstruct(*made, SEALED, 1.0, setting=seen("all"), rows=2)


# --------------------------------------------------------------------------------------------------
# curves


def test_what_epsilon_and_delta_allow():
    f = np.array([0.0, 0.01, 0.5, 1.0])
    np.testing.assert_allclose(allowed([(0.0, 0.0)], f), f)
    np.testing.assert_allclose(allowed([], f), 1)
    np.testing.assert_allclose(
        allowed([(1.0, 0.1)], f), [0.1, np.e * 0.01 + 0.1, 1 - 0.4 / np.e, 1]
    )
    np.testing.assert_allclose(allowed([(1e4, 0.0)], f), [0, 1, 1, 1])


def test_the_curve_counts():
    held, not_held = np.array([3.0, 1.0, 2.5, 0.0]), np.array([2.0, 1.0, 0.5, -1.0])
    np.testing.assert_allclose(
        _curve(held, not_held, np.array([0.0, 0.25, 0.5, 0.75, 1.0])), [0.5, 0.5, 0.75, 1.0, 1.0]
    )
    same = np.zeros(4)  # ties must not look like success
    assert (_curve(same, same, np.array([0.0, 0.5])) == 0).all()
    assert FALSE_POSITIVES[0] == 0
    assert FALSE_POSITIVES[-1] == 1


# --------------------------------------------------------------------------------------------------
# command


def attacked(out, runs, rows):
    given = ["--out", str(out), "--seed", "1", "--runs", str(runs), "--rows", str(rows), "--json"]
    result = CliRunner().invoke(main, ["attacks", *given])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_command_leaves_numbers_pictures_and_words(tmp_path, monkeypatch):
    chosen = [
        case for case in gallery.CASES if case[1] in (None, 0.14) or case[:2] == ("dual", 1.0)
    ]
    monkeypatch.setattr(gallery, "CASES", chosen)
    told = attacked(tmp_path / "out", runs=20, rows=2)
    kept = json.loads((tmp_path / "out" / "attacks.json").read_text())
    assert {key: told[key] for key in kept} == kept
    assert set(kept) >= {
        "version",
        "simulation",
        "source",
        "seed",
        "reconstruction",
        "small_node",
        "membership",
    }
    assert kept["simulation"] is True
    assert "synthetic" in kept["source"]
    found = [len(kept[key]) for key in ("reconstruction", "small_node", "membership")]
    assert found == [5, 5, 10]
    assert kept["reconstruction"][0]["recovered"] == 11
    names = {Path(path).name for path in told["pictures"]}
    assert names == {
        "reconstruction.png",
        "small-node.png",
        "membership-neighbour.png",
        "membership-transcript.png",
    }
    for path in told["pictures"]:
        content = Path(path).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 20_000
    said = "\n".join(words(kept))
    assert "recovered 11 of 11 attributes" in said
    assert "SIMULATION" in said
    assert "proves nothing" in said
    assert said.count("Algorithm 1: 2 of 2 answers right") == 2
    assert said.count("odds from 1:1 to certainty") == 2
    check_words_of_other_findings(told)


def check_words_of_other_findings(told):
    """What is printed of Algorithm 1, and of a bound that is passed, is what the attack found."""
    failed = [
        {**case, "right": 0.5, "odds": 1.0} if case["mechanism"] == "none" else case
        for case in told["membership"]
    ]
    said = "\n".join(words({**told, "membership": failed}))
    assert "Algorithm 1: 1 of 2 answers right" in said
    assert "odds from 1:1 to 1.00:1." in said
    for never in ("100 of 100", "certainty"):
        assert never not in said
    drawn = json.dumps(membership_picture({**told, "membership": failed}, "transcript").to_dict())
    assert "Algorithm 1: 50.0% right" in drawn
    assert "always right" not in drawn
    assert "95% interval of 40 answers" in said
    for right, words_of_it in (
        (0.51, "allows 51.3)"),
        (0.53, "allows 51.3, which lies within this interval: the excess may be chance)"),
        (0.90, "allows 51.3, which lies BELOW this interval: doubt the guarantee)"),
    ):
        private = [case for case in told["membership"] if case["mechanism"] != "none"]
        lower, upper = wilson(right, 40)
        changed = {"right": right, "right_bound": 0.513}
        changed["interval"] = {"lower": lower, "upper": upper}
        cases = [{**case, **changed} for case in private]
        assert words_of_it in "\n".join(words({**told, "membership": cases}))


def test_the_command_refuses_a_folder_that_holds_anything(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    result = CliRunner().invoke(main, ["attacks", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "nothing is overwritten" in result.output


@pytest.mark.slow
def test_the_command_as_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["attacks"])
    assert result.exit_code == 0, result.output
    assert "recovered 11 of 11 attributes" in result.output
    kept = json.loads(Path("attacks/attacks.json").read_text())
    found = [len(kept[key]) for key in ("reconstruction", "small_node", "membership")]
    assert found == [11, 11, 22]
    assert {path.suffix for path in Path("attacks").iterdir()} == {".png", ".json"}


def test_a_neighbour_reads_all_without_noise_and_what_guessing_gives_with_a_budget():
    found = look(1.0, rows=20, runs=200, seed=0)
    assert found.plain.recovered == found.plain.attributes == 11
    assert found.certain.right == 1.0
    assert found.noisy.epsilon == pytest.approx(1.0, rel=2e-3)
    assert found.noisy.epsilon <= 1.0
    assert found.asked.epsilon == found.noisy.epsilon
    low, high = found.noisy.interval.lower, found.noisy.interval.upper
    assert low < found.noisy.guessing < high
    assert found.asked.interval.lower <= found.asked.right_bound
    shown = found.to_json()
    assert shown["simulation"]
    assert set(shown["plain"]["example"]) == set(shown["noisy"]["example"])
    loud = look(3000.0, rows=8, runs=50, seed=0)  # a budget that hides little: the attack does win
    assert loud.noisy.recovered >= loud.noisy.guessing + 1
    assert loud.asked.right > 0.9
