"""Masks that cancel: exact sums, letters that look uniform, streams that are never used twice."""

from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from dynadp.consensus.masks import MaskGraph, Masks, decoded
from dynadp.consensus.run_keys import Label, PairKeys, RunKey, stream
from dynadp.errors import DeclarationError, Rejected, SumSpoiled
from dynadp.mechanisms.base import PublicNumbers
from dynadp.mechanisms.entropy import SeededEntropy, SystemEntropy
from dynadp.mechanisms.gaussian import Sealing
from dynadp.mechanisms.sealed import Sealed
from dynadp.problem.losses import Logistic


def names(P):
    return tuple(f"node {p}" for p in range(P))


def sealing(P, honest=None, partners=None):
    return Sealing(P, honest or max(P - 1, 1), P - 1 if partners is None else partners)


def masks(P, seed=0, partners=None, honest=None, run="run"):
    those = sealing(P, honest, partners)
    return Masks.in_process(names(P), those, SeededEntropy(seed), "consortium", run)


def whole_numbers(P, width, seed=0, size=2**50):
    return np.random.default_rng(seed).integers(-size, size, (P, width))


# --------------------------------------------------------------------------------------------------
# sums


@pytest.mark.parametrize("P", [1, 2, 3, 5, 20, 50, 200])
def test_letters_add_up_to_the_sum_bit_for_bit(P):
    k = whole_numbers(P, 7)
    wanted = k.sum(axis=0)
    letters = masks(P).sealed(k.copy(), names(P), 1)
    assert (letters.sum(axis=0, dtype=np.uint64).view(np.int64) == wanted).all()
    if P > 1:
        assert not (letters.view(np.int64) == k).any()


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 10**6), st.integers(1, 62))
def test_any_whole_numbers_add_up(P, width, seed, bits):
    k = whole_numbers(P, width, seed, 2**bits)
    with np.errstate(over="ignore"):
        wanted = k.sum(axis=0)  # modulo 2^64, as letters are
    letters = masks(P, seed).sealed(k.copy(), names(P), 3)
    assert (letters.sum(axis=0, dtype=np.uint64).view(np.int64) == wanted).all()


@pytest.mark.parametrize(("P", "partners"), [(9, 4), (12, 2), (30, 8), (300, 64)])
def test_a_sparse_graph_adds_up_too(P, partners):
    k = whole_numbers(P, 3)
    letters = masks(P, partners=partners, honest=P - partners + 1).sealed(k.copy(), names(P), 1)
    assert (letters.sum(axis=0, dtype=np.uint64).view(np.int64) == k.sum(axis=0)).all()


def test_nodes_apart_send_what_they_send_together():
    """Each node with its own key and the others' public halves."""
    P, k = 5, whole_numbers(5, 4)
    together = masks(P).sealed(k.copy(), names(P), 2, attempt=1)
    keys = {node: RunKey.draw(node, SeededEntropy(0)) for node in names(P)}
    publics = {node: key.public_bytes for node, key in keys.items()}
    for p, node in enumerate(names(P)):
        pairs = PairKeys({node: keys[node]}, publics, "consortium", "run")
        alone = Masks(MaskGraph(names(P), sealing(P)), pairs)
        own = alone.sealed(k[p : p + 1].copy(), [node], 2, attempt=1)
        assert (own[0] == together[p]).all()


def test_what_was_hidden_is_overwritten():
    k = whole_numbers(3, 4)
    masks(3).sealed(k, names(3), 1)
    assert not k.any()


# --------------------------------------------------------------------------------------------------
# the lemma: what a coalition learns is the sum over each component without it


@pytest.mark.parametrize(("P", "partners"), [(5, 4), (6, 2), (7, 2), (8, 4), (9, 4), (9, 6)])
def test_no_coalition_below_the_partners_parts_the_others(P, partners):
    graph = nx.Graph(MaskGraph(names(P), sealing(P, P - partners + 1, partners)).pairs)
    assert graph.number_of_nodes() == P
    assert {d for _, d in graph.degree} == {partners}
    for c in range(partners):
        for coalition in combinations(range(P), c):
            assert nx.is_connected(graph.subgraph(set(range(P)) - set(coalition)))
    if partners < P - 1:  # and all partners of one node part it from the rest
        victim = graph.subgraph(set(range(P)) - set(graph[0]))
        assert not nx.is_connected(victim)


@pytest.mark.diagonal
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("P", "coalition"), [(3, 1), (5, 2), (6, 3)])
def test_letters_without_one_are_uniform(P, coalition, seed):
    """All but one of the honest nodes' letters, without the coalition's masks: every byte, and
    every byte of every difference, over 1,024 runs of the same numbers.
    """
    k, runs = whole_numbers(P, 2, size=2**40), 1024
    there, gone = names(P)[coalition:], names(P)[:coalition]
    seen = np.empty((runs, len(there), 2), np.uint64)
    for i in range(runs):
        made = masks(P, seed=10_000 * seed + i)
        letters = made.sealed(k.copy(), names(P), 1)
        label = Label(made.graph.hash, 1, 0, bytes(32))
        for j, node in enumerate(there):  # the coalition takes off what it shares with them
            for other in gone:
                letters[coalition + j] += stream(made._pairs.of(other, node), label, 2)
        seen[i] = letters[coalition:]
    total = seen.sum(axis=1, dtype=np.uint64).view(np.int64)
    assert (total == k[coalition:].sum(axis=0)).all()  # the sum, and it alone, is known
    without = seen[:, :-1]
    apart = without[:, 1:] - without[:, :-1]
    for words in (*without.transpose(1, 2, 0), *apart.transpose(1, 2, 0)):
        for word in words:
            counts = np.bincount(word.copy().view(np.uint8), minlength=256)
            assert chisquare(counts).pvalue > 1e-5


def test_one_letter_says_nothing_about_what_is_in_it():
    """The same keys, other numbers: a letter moves by exactly what was put into it, so that a
    uniform one stays uniform.
    """
    k, other = whole_numbers(4, 6), whole_numbers(4, 6, seed=1)
    a, b = (masks(4).sealed(v.copy(), names(4), 1) for v in (k, other))
    assert (b - a == (other - k).view(np.uint64)).all()


def test_members_that_leave_too_few_honest_ones_are_refused():
    """A coalition that calls for a sum over itself and one victim gets no letter."""
    with pytest.raises(DeclarationError, match="leaves 1 honest ones if 2 collude; the plan needs"):
        MaskGraph(names(3), Sealing(5, 3, 4))
    with pytest.raises(DeclarationError, match="do not keep 9 members together without any 5"):
        MaskGraph(names(9), Sealing(9, 4, 4))
    with pytest.raises(DeclarationError, match="same name"):
        MaskGraph(("a", "a", "b"), sealing(3))


# --------------------------------------------------------------------------------------------------
# streams and keys


def labels():
    base = {"members": bytes(32), "sum": 1, "attempt": 0, "transcript": bytes(32)}
    other = {"members": b"\1" * 32, "sum": 2, "attempt": 1, "transcript": b"\1" * 32}
    return [Label(**base), *(Label(**{**base, name: other[name]}) for name in base)]


def test_every_part_of_a_label_counts():
    key = bytes(range(32))
    streams = [stream(key, label, 4) for label in labels()]
    for a, b in combinations(streams, 2):
        assert not (a == b).any()
    assert (stream(key, labels()[0], 9)[:4] == streams[0]).all()


def test_a_pair_key_is_for_both_names_one_run_and_one_consortium():
    a, b, c = (RunKey.draw(node, SystemEntropy()) for node in "abc")
    both = a.shared_with("b", b.public_bytes, "us", "run")
    assert both == b.shared_with("a", a.public_bytes, "us", "run")
    assert len(both) == 32
    others = [
        a.shared_with("b", b.public_bytes, "us", "run 2"),
        a.shared_with("b", b.public_bytes, "them", "run"),
        a.shared_with("d", b.public_bytes, "us", "run"),
        a.shared_with("c", c.public_bytes, "us", "run"),
    ]
    assert len({bytes(key) for key in (both, *others)}) == 5


def test_streams_follow_the_sums_before_them():
    made, other = masks(3), masks(3)
    made.follow(0, np.array([1.0]))
    other.follow(0, np.array([1.0 + 2.0**-50]))
    k = whole_numbers(3, 2)
    a, b = (m.sealed(k.copy(), names(3), 1) for m in (made, other))
    assert not (a == b).any()


@pytest.mark.parametrize("bad", [bytes(32), b"\1" + bytes(31), bytes(31)])
def test_a_key_that_is_none_is_refused(bad):
    with pytest.raises(Rejected, match="'b' is no key"):
        RunKey.draw("a", SystemEntropy()).shared_with("b", bad, "us", "run")


def test_keys_are_not_shown_and_are_forgotten():
    made = masks(3)
    made.sealed(whole_numbers(3, 1), names(3), 1)
    keys, shared = list(made._pairs.keys.values()), list(made._pairs._shared.values())
    secrets = [key.secret for key in keys] + [bytes(s) for s in shared]
    assert all(any(secret) for secret in secrets)
    shown = repr(made) + repr(keys) + repr(made._pairs) + str(vars(made))
    assert not any(secret.hex() in shown or repr(secret)[2:-1] in shown for secret in secrets)
    made.forget()
    assert not any(any(key._secret) for key in keys)
    assert not any(any(s) for s in shared)


# --------------------------------------------------------------------------------------------------
# decoding


def noise(P, mu=0.1, rows=1000.0, honest=None, width=3):
    none = np.zeros(P)
    public = PublicNumbers(
        np.full(P, rows), none, width, none, 1.0, np.ones(1), none[:, None], Logistic()
    )
    mechanism = Sealed(honest=honest or max(P - 1, 1)).among(P)
    return mechanism.plan(public, np.full((P, 1, 1), mu))[0]


def test_a_sum_within_its_bound_is_decoded():
    made, c = masks(4), noise(4)
    k = whole_numbers(4, 3, size=2**40)
    total = decoded(made.sealed(k.copy(), names(4), 1)[:, None], c)
    assert (total[0] == k.sum(axis=0) * c.step[0, 0]).all()


@pytest.mark.parametrize("spoil", ["missing", "changed", "attempt", "sum", "run", "members"])
def test_letters_that_do_not_belong_together_give_no_sum(spoil):
    made, c, k = masks(4), noise(4), whole_numbers(4, 3, size=2**40)
    letters = made.sealed(k.copy(), names(4), 1)
    other = {
        "attempt": lambda: masks(4).sealed(k.copy(), names(4), 1, attempt=1),
        "sum": lambda: masks(4).sealed(k.copy(), names(4), 2),
        "run": lambda: masks(4, run="another").sealed(k.copy(), names(4), 1),
        "members": lambda: masks(3).sealed(k[:3].copy(), names(3), 1),
    }
    if spoil == "missing":
        letters = letters[1:]
    elif spoil == "changed":
        letters[2, 0] ^= np.uint64(2**61)
    else:
        letters[1] = other[spoil]()[1]
    with pytest.raises(SumSpoiled, match="longer than honest ones can make it"):
        decoded(letters[:, None], c)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 300),
    st.floats(1e-6, 5.0),
    st.floats(1, 1e9),
    st.integers(1, 1000),
    st.data(),
)
def test_no_sum_overflows(P, mu, rows, width, data):
    """Whatever the public numbers: the largest sum and its noise fit, or the plan is refused."""
    honest, refused = data.draw(st.integers(1, max(P - 1, 1))), ""
    try:
        c = noise(P, mu, rows, honest, width)
    except DeclarationError as error:
        refused = str(error)
    if refused:
        assert "do not fit into 64 bits" in refused
        assert P * rows * mu > 1e8
        return
    apart = np.sqrt(P) * (np.sqrt(width) + 12) * c.parameter.max() * c.step.max()
    longest = P * rows * 2.0 + apart
    assert longest <= c.radius.min() * (1 + 1e-9)
    assert c.radius.max() / c.step.min() < 2.0**62
    assert c.parameter.min() >= 2.0**28
    assert (c.step <= c.resolution.step**2).all()


def test_too_many_rows_are_refused_before_a_run():
    with pytest.raises(DeclarationError, match=r"64 bits with their noise; take a smaller epsilon"):
        noise(100, mu=50.0, rows=1e9)


# --------------------------------------------------------------------------------------------------
# declarations


@pytest.mark.parametrize(
    ("declared", "members", "words"),
    [
        (Sealed(), 5, "declare how many of the 5 add their noise"),
        (Sealed(honest=5), 5, "honest is 5 of 5 nodes; expected a number from 1 to 4"),
        (Sealed(honest=7), 5, "from 1 to 4: whoever looks knows its own noise"),
        (Sealed(colluding=0), 5, "honest is 5 of 5 nodes"),
        (Sealed(colluding=5), 5, "honest is 0 of 5 nodes"),
        (Sealed(honest=3, colluding=1), 5, "honest is 3 and colluding is 1 of 5 nodes"),
        (Sealed(honest=5, partners=4), 10, "expected an even number above 5"),
        (Sealed(honest=7, partners=5), 10, "expected an even number above 3"),
    ],
)
def test_declarations_that_cannot_be(declared, members, words):
    with pytest.raises(DeclarationError, match=words):
        declared.among(members)


@pytest.mark.parametrize(
    "wrong", [{"honest": 0}, {"honest": 2.5}, {"spares": -1}, {"honest": True}]
)
def test_numbers_that_are_none(wrong):
    with pytest.raises(DeclarationError, match="expected a whole number from"):
        Sealed(**wrong)


def test_who_is_honest_is_known_once_nodes_are():
    assert Sealed(colluding=2).among(5).sealing == Sealing(5, 3, 4)
    assert Sealed(honest=3).among(5) == Sealed(colluding=2).among(5)
    assert Sealed(honest=1).among(1).sealing == Sealing(1, 1, 0)
    assert Sealed(honest=1).among(2).sealing == Sealing(2, 1, 1)
    assert Sealed(honest=200).among(300).sealing == Sealing(300, 200, 102)
    assert Sealed(honest=299).among(300).sealing == Sealing(300, 299, 64)
    assert Sealed(honest=7, partners=4).among(10).sealing == Sealing(10, 7, 4)
