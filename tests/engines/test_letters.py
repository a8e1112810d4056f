"""Letters and the post office: what is believed, what is refused and why."""

import os
import struct
from collections import Counter
from dataclasses import replace
from threading import Barrier, Event, Thread

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from dynadp.engines.inbox import AcceptanceRules, Grid, Inbox, is_broadcast
from dynadp.engines.letters import KINDS, Letter, run_id, verify
from dynadp.errors import RecordError, Rejected

NAMES = ("north", "south", "St. Mary's Köln", "west")  # a path: west is no neighbour of north
KEYS = {name: Ed25519PrivateKey.from_private_bytes(run_id(name)) for name in NAMES}
PUBLIC = {name: key.public_key() for name, key in KEYS.items()}
RUN, CONFIG, ROUNDS = run_id("run"), run_id("configuration"), 3
STEP, RADIUS, D = 2.0**-4, 8.0, 3
GRIDS = {
    **{
        (name, "message", n): Grid(D, STEP, RADIUS)
        for name in NAMES[:3]
        for n in range(1, ROUNDS + 1)
    },
    **{(name, "message", 0): Grid(D - 1, STEP, RADIUS) for name in NAMES},
    **{(name, "mean", ROUNDS): Grid(D, 0.0, RADIUS) for name in NAMES},
}
GOOD = Letter("message", RUN, CONFIG, "south", 2, np.array([0.5, -STEP, 3.0]).tobytes())
SEALED = GOOD.sealed(KEYS["south"])


def rules(me="north", neighbours=("south", "St. Mary's Köln")):
    return AcceptanceRules(me, frozenset(neighbours), RUN, CONFIG, PUBLIC, ROUNDS, GRIDS)


@pytest.fixture
def post(tmp_path):
    office = Inbox(tmp_path / "letters.sqlite", rules(), KEYS["north"])
    yield office
    office.close()


def letter(author="south", n=2, values=(0.5, -STEP, 3.0), kind="message", key=None, **changes):
    made = Letter(kind, RUN, CONFIG, author, n, np.asarray(values, "<f8").tobytes())
    return replace(made, **changes).sealed(KEYS[key or author])


# --------------------------------------------------------------------------------------------------
# letters


IDS = st.binary(min_size=64, max_size=64)


@given(
    st.sampled_from(KINDS),
    st.sampled_from(NAMES),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=60),
    IDS,
)
def test_round_trip_and_the_same_bytes_every_time(kind, author, n, body, ids):
    made = Letter(kind, ids[:32], ids[32:], author, n, body)
    data = made.sealed(KEYS[author])
    assert verify(data, PUBLIC) == made
    assert data == made.sealed(KEYS[author])


def test_the_layout_is_the_documented_one():
    head = (
        b"DYDP"
        + bytes([1, KINDS.index("message")])
        + RUN
        + CONFIG
        + struct.pack("<IIB", 2, 8 * D, 5)
    )
    assert SEALED[:-64] == head + b"south" + struct.pack("<3d", 0.5, -STEP, 3.0)
    KEYS["south"].public_key().verify(SEALED[-64:], SEALED[:-64])
    np.testing.assert_array_equal(verify(SEALED, PUBLIC).values, [0.5, -STEP, 3.0])


def test_the_longest_name_fits():
    key = KEYS["north"]
    made = Letter("done", RUN, CONFIG, "é" * 32, 3, b"")
    assert verify(made.sealed(key), {"é" * 32: key.public_key()}) == made


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused(data):
    with pytest.raises(Rejected):
        verify(data, PUBLIC)


@given(st.binary(max_size=200), st.integers(0, 255), st.integers(0, 255))
def test_a_good_beginning_does_not_help(data, kind, length):
    with pytest.raises(Rejected):
        verify(b"DYDP" + bytes([1, kind]) + data + bytes([length]), PUBLIC)


@given(st.integers(0, len(SEALED) - 1), st.integers(1, 255))
def test_one_changed_byte_is_refused(place, change):
    data = bytearray(SEALED)
    data[place] ^= change
    with pytest.raises(Rejected):
        verify(bytes(data), PUBLIC)


def test_every_changed_bit_is_refused():
    for place in range(8 * len(SEALED)):
        data = bytearray(SEALED)
        data[place // 8] ^= 1 << place % 8
        with pytest.raises(Rejected):
            verify(bytes(data), PUBLIC)


@pytest.mark.parametrize("length", range(len(SEALED)))
def test_a_cut_letter_is_refused(length):
    with pytest.raises(Rejected, match="malformed"):
        verify(SEALED[:length], PUBLIC)


@given(st.binary(min_size=1, max_size=80), st.booleans())
def test_a_longer_letter_is_refused(more, before):
    with pytest.raises(Rejected, match=r"malformed|version"):
        verify(more + SEALED if before else SEALED + more, PUBLIC)


@given(
    st.lists(st.tuples(st.integers(0, len(SEALED)), st.binary(max_size=9)), min_size=1, max_size=4),
    st.integers(0, 20),
)
def test_spliced_letters_are_refused(splices, cut):
    data = SEALED
    for place, piece in splices:
        data = data[:place] + piece + data[place + cut :]
    if data != SEALED:
        with pytest.raises(Rejected):
            verify(data, PUBLIC)


def test_another_signature_of_the_same_bytes_is_refused():
    """S + L is the textbook second signature; a letter has one spelling alone."""
    order = 2**252 + 27742317777372353535851937790883648493
    S = int.from_bytes(SEALED[-32:], "little") + order
    with pytest.raises(Rejected, match="forged"):
        verify(SEALED[:-32] + S.to_bytes(32, "little"), PUBLIC)


def test_a_letter_with_a_note_is_of_version_2():
    """A note is signed with the rest; without one the bytes are those of version 1."""
    plain = Letter("message", RUN, CONFIG, "south", 2, b"body")
    noted = Letter("message", RUN, CONFIG, "south", 2, b"body", b'{"edges": {}}')
    data = noted.sealed(KEYS["south"])
    assert plain.sealed(KEYS["south"])[4] == 1
    assert data[4] == 2
    assert verify(data, PUBLIC) == noted
    at = data.index(b"edges")
    with pytest.raises(Rejected, match="forged"):
        verify(data[:at] + b"edgez" + data[at + 5 :], PUBLIC)
    moved = data[: at - 6] + b"\x00\x00\x00\x00" + data[at - 2 :]
    with pytest.raises(Rejected, match="malformed"):
        verify(moved, PUBLIC)


def test_a_note_is_refused_where_a_run_has_none():
    data = letter(note=b"{}")
    with pytest.raises(Rejected, match="with a note that this run does not have"):
        rules().check(data, "south")
    assert replace(rules(), longest_note=2).check(data, "south").note == b"{}"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "malformed: too short"),
        (b"X" + SEALED[1:], "malformed: not a message of dynadp"),
        (SEALED[:4] + b"\x03" + SEALED[5:], "version 3 of messages, this program reads 1 and 2"),
        (SEALED[:4] + b"\x02" + SEALED[5:], "malformed: lengths"),
        (SEALED[:5] + b"\x63" + SEALED[6:], "malformed: lengths"),
        (SEALED.replace(b"south", b"s\xffuth"), "not UTF-8"),
        (SEALED.replace(b"south", b"North"), "from a node that is not in the run"),
        (
            SEALED.replace(b"south", b"north"),
            "forged: not signed with the key that the run file names for north",
        ),
        (letter(key="north"), "forged: not signed with the key that the run file names for south"),
    ],
)
def test_reasons(data, reason):
    with pytest.raises(Rejected) as caught:
        verify(data, PUBLIC)
    assert str(caught.value).startswith(reason) or reason in str(caught.value)


# --------------------------------------------------------------------------------------------------
# what is believed


def test_what_may_be_handed_on():
    assert [is_broadcast("message", n) for n in range(3)] == [True, False, False]
    assert is_broadcast("mean", ROUNDS)
    assert not is_broadcast("done", 0)
    assert not is_broadcast("hello", 0)


@pytest.mark.parametrize(
    ("data", "via"),
    [
        (SEALED, "south"),
        (letter(values=(-0.0, 0, 0)), "south"),
        (letter(values=(RADIUS, 0, 0)), "south"),
        (letter(n=0, values=(1, 2)), "south"),
        (letter(author="west", n=0, values=(1, 2)), "south"),  # of all to all
        (letter(author="north", n=0, values=(1, 2)), "south"),  # my own, from one who kept it
        (letter(author="west", n=ROUNDS, kind="mean", values=(0.1, 0.2, 0.3)), "St. Mary's Köln"),
        (letter(author="St. Mary's Köln", n=1), "St. Mary's Köln"),
        (letter(n=ROUNDS, kind="done", values=()), "south"),
    ],
)
def test_believed(post, data, via):
    found = post.offer(data, via)
    assert found == verify(data, PUBLIC)
    assert post.get(found.author, found.kind, found.round) == data
    assert post.offer(data, via) is None
    assert post.rejected == Counter()


REFUSED = [
    (
        "forged",
        letter(key="west"),
        "south",
        "forged: not signed with the key that the run file names for south",
    ),
    ("garbage", b"\x00" * 300, "south", "malformed: not a message of dynadp"),
    ("another run", letter(run=run_id("other")), "south", "of another run"),
    ("another configuration", letter(config=run_id("other")), "south", "of another configuration"),
    ("no neighbour", letter(author="west", n=1), "west", "from a node that is no neighbour"),
    (
        "no neighbour, to all",
        letter(author="west", n=0, values=(1, 2)),
        "west",
        "from a node that is no neighbour",
    ),
    ("a stranger", letter(), "nobody", "under the name of nobody, but signed by south"),
    (
        "handed on by no neighbour",
        letter(n=0, values=(1, 2)),
        "west",
        "under the name of west, but signed by south",
    ),
    ("from myself", letter(author="north", n=1), "north", "from a node that is no neighbour"),
    (
        "another's name",
        letter(),
        "St. Mary's Köln",
        "under the name of St. Mary's Köln, but signed by south",
    ),
    (
        "my own message, back",
        letter(author="north", n=1),
        "south",
        "under the name of south, but signed by north",
    ),
    (
        "a farewell, handed on",
        letter(n=ROUNDS, kind="done", values=()),
        "St. Mary's Köln",
        "under the name of St. Mary's Köln, but signed by south",
    ),
    (
        "a round past the last",
        letter(n=ROUNDS + 1),
        "south",
        "of a round that the run does not have",
    ),
    ("a round far away", letter(n=2**32 - 1), "south", "of a round that the run does not have"),
    (
        "a mean of another round",
        letter(n=1, kind="mean"),
        "south",
        "of a round that the run does not have",
    ),
    ("a greeting", letter(n=0, kind="hello"), "south", "of a round that the run does not have"),
    ("too short", letter(values=(0.5, 0.5)), "south", "of the wrong dimension: expected 3 values"),
    ("too long", letter(values=(0.5,) * 4), "south", "of the wrong dimension: expected 3 values"),
    ("nothing", letter(values=()), "south", "of the wrong dimension: expected 3 values"),
    (
        "half a number",
        letter(body=GOOD.body[:-4]),
        "south",
        "of the wrong dimension: expected 3 values",
    ),
    ("training in round 0", letter(n=0), "south", "of the wrong dimension: expected 2 values"),
    ("NaN", letter(values=(np.nan, 0, 0)), "south", "not finite"),
    ("inf", letter(values=(0, np.inf, 0)), "south", "not finite"),
    ("-inf", letter(values=(0, 0, -np.inf)), "south", "not finite"),
    ("huge", letter(values=(1e300, 0, 0)), "south", "outside the declared ball"),
    (
        "so huge that squares overflow",
        letter(values=(1.7e308,) * 3),
        "south",
        "outside the declared ball",
    ),
    ("outside", letter(values=(RADIUS, RADIUS, 0)), "south", "outside the declared ball"),
    (
        "just outside",
        letter(values=(RADIUS + 2 * STEP, 0, 0)),
        "south",
        "outside the declared ball",
    ),
    ("off the grid", letter(values=(0.5 + STEP / 2, 0, 0)), "south", "off the public grid"),
    (
        "just off the grid",
        letter(values=(np.nextafter(0.5, 1), 0, 0)),
        "south",
        "off the public grid",
    ),
    ("the smallest number", letter(values=(5e-324, 0, 0)), "south", "off the public grid"),
    (
        "a mean outside",
        letter(n=ROUNDS, kind="mean", values=(9, 0, 0)),
        "south",
        "outside the declared ball",
    ),
    (
        "a talkative farewell",
        letter(n=ROUNDS, kind="done"),
        "south",
        "malformed: a farewell says nothing but itself",
    ),
    (
        "an early farewell",
        letter(n=1, kind="done", values=()),
        "south",
        "malformed: a farewell says nothing but itself",
    ),
]


@pytest.mark.parametrize(
    ("data", "via", "reason"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_refused_counted_and_forgotten(post, data, via, reason):
    for times in (1, 2):
        with pytest.raises(Rejected) as caught:
            post.offer(data, via)
        assert str(caught.value) == reason
        assert post.rejected == {f"{via}: {reason}": times}
    assert post._connection.execute("SELECT count(*) FROM letter").fetchone() == (0,)


def test_a_second_letter_with_other_content_is_refused_and_the_first_stays(post):
    post.offer(SEALED, "south")
    with pytest.raises(
        Rejected, match="a second letter of south for the same round, with other content"
    ):
        post.offer(letter(values=(0, 0, 0)), "south")
    assert post.get("south", "message", 2) == SEALED
    for _ in ("from memory", "from the file"):
        np.testing.assert_array_equal(post.values("south", "message", 2), GOOD.values)
    assert post.rejected == {
        "south: a second letter of south for the same round, with other content": 1
    }


def test_a_node_never_makes_two_letters_for_a_round(post):
    first = post.letter("message", 1, GOOD.body)
    assert post.letter("message", 1, GOOD.body) == first == post.get("north", "message", 1)
    with pytest.raises(Rejected, match="a second letter of north"):
        post.letter("message", 1, np.zeros(D).tobytes())
    assert post.get("north", "message", 1) == first


def test_reasons_are_counted_apart(post):
    for data, via in [(letter(values=(np.nan, 0, 0)), "south")] * 3 + [
        (letter(n=9), "south"),
        (letter(n=9), "west"),
    ]:
        with pytest.raises(Rejected):
            post.offer(data, via)
    assert post.rejected == {
        "south: not finite": 3,
        "south: of a round that the run does not have": 1,
        "west: under the name of west, but signed by south": 1,
    }


@given(st.lists(st.integers(-200, 200), min_size=D, max_size=D), st.floats(0, 1))
def test_the_grid_and_the_ball_decide(steps, off):
    on = np.array(steps) * STEP
    inside = np.linalg.norm(on) <= RADIUS + STEP * np.sqrt(D)
    belief = rules()
    if inside:
        assert belief.check(letter(values=on), "south").round == 2
    else:
        with pytest.raises(Rejected, match="ball"):
            belief.check(letter(values=on), "south")
    moved = on + np.array([0, 0, off * STEP])
    if inside and moved[2] not in (on[2], on[2] + STEP) and np.linalg.norm(moved) <= RADIUS:
        with pytest.raises(Rejected, match="off the public grid"):
            belief.check(letter(values=moved), "south")


# --------------------------------------------------------------------------------------------------
# the office


def test_letters_outlive_the_process(tmp_path):
    path = tmp_path / "letters.sqlite"
    first = Inbox(path, rules(), KEYS["north"])
    first.offer(SEALED, "south")
    own = first.letter("message", 2, GOOD.body)
    first.close()
    again = Inbox(path, rules(), KEYS["north"])
    assert again.get("south", "message", 2) == SEALED
    assert again.letter("message", 2, GOOD.body) == own
    assert again.offer(SEALED, "south") is None
    np.testing.assert_array_equal(again.values("south", "message", 2), [0.5, -STEP, 3.0])
    again.close()


def test_what_is_here_and_what_is_missing(post):
    assert post.missing("message", 2, ["St. Mary's Köln", "south"]) == ["St. Mary's Köln", "south"]
    assert post.last("south") is post.get("south", "message", 2) is None
    post.offer(letter(n=1), "south")
    post.offer(SEALED, "south")
    post.offer(letter(n=0, values=(1, 2)), "south")
    post.offer(letter(n=ROUNDS, kind="mean"), "south")
    assert post.missing("message", 2, ["St. Mary's Köln", "south"]) == ["St. Mary's Köln"]
    assert post.last("south") == SEALED  # of messages alone
    with pytest.raises(RecordError, match="the message of south, round 3, is gone"):
        post.values("south", "message", 3)


def test_a_letter_that_another_wrote_into_the_file_is_here_once_it_is_offered(post):
    other = Inbox(post.path, rules(), KEYS["north"])
    other.offer(SEALED, "south")
    other.close()
    assert post.missing("message", 2, ["south"]) == ["south"]
    assert post.offer(SEALED, "south") is None
    assert post.missing("message", 2, ["south"]) == []
    np.testing.assert_array_equal(post.values("south", "message", 2), GOOD.values)


def test_a_letter_is_checked_when_it_comes_in_and_again_when_it_comes_from_the_file(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("dynadp.engines.inbox._UNREAD", 1)
    path, checked = tmp_path / "letters.sqlite", []
    monkeypatch.setattr(
        "dynadp.engines.inbox.verify", lambda data, keys: (checked.append(1), verify(data, keys))[1]
    )
    office = Inbox(path, rules(), KEYS["north"])
    office.offer(SEALED, "south")
    office.offer(letter(n=1), "south")  # one too many to be held in memory
    for n, checks in ((2, 2), (2, 3), (1, 4)):
        np.testing.assert_array_equal(office.values("south", "message", n), GOOD.values)
        assert len(checked) == checks
    forged = SEALED[:-1] + bytes([SEALED[-1] ^ 1])
    office._connection.execute("UPDATE letter SET content = ? WHERE round = 2", (forged,))
    with pytest.raises(Rejected, match="forged"):
        office.values("south", "message", 2)
    office.close()


def test_a_file_that_is_no_post_office(tmp_path):
    (tmp_path / "x").write_bytes(b"no database" * 100)
    with pytest.raises(RecordError, match="remove it, and messages are asked for again") as refusal:
        Inbox(tmp_path / "x", rules(), KEYS["north"])
    assert refusal.tb  # keeps all that was being made: the file is let go nevertheless
    assert str(tmp_path / "x") not in [
        os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
    ]
    with pytest.raises(RecordError, match="cannot use"):
        Inbox(tmp_path / "none" / "x", rules(), KEYS["north"])


def test_a_full_disk_is_told_and_nothing_is_lost(post):
    post.letter("message", 1, GOOD.body)
    pages = post._connection.execute("PRAGMA page_count").fetchone()[0]
    post._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(RecordError, match="disk is full; see to its disk"):
        post.letter("message", 2, bytes(10**6))
    assert post.get("north", "message", 1) is not None
    post._connection.execute("PRAGMA max_page_count=100000")
    assert post.offer(SEALED, "south") is not None


def test_a_file_that_is_damaged_or_closed_while_it_is_used(post):
    post.offer(SEALED, "south")
    post._connection.execute("DROP TABLE letter")
    for use in (
        lambda: post.get("south", "message", 2),
        lambda: post.offer(SEALED, "south"),
        lambda: post.last("south"),
        lambda: post.letter("message", 2, GOOD.body),
    ):
        with pytest.raises(RecordError, match="remove it, and messages are asked for again"):
            use()
    post.close()
    with pytest.raises(RecordError, match="cannot use"):
        post.offer(SEALED, "south")


def test_many_threads_at_once(post):
    """Each letter is new for one of them alone; equivocations never win; nothing that is refused is
    lost from the count.
    """
    letters = [letter(n=n) for n in range(1, ROUNDS + 1)] + [
        letter(author=a, n=0, values=(1, 2)) for a in NAMES
    ]
    others = [letter(n=n, values=(0, 0, 0)) for n in range(1, ROUNDS + 1)]
    bad = letter(values=(np.nan, 0, 0))
    for data in letters[:ROUNDS]:  # so that the others come second
        post.offer(data, "south")
    new, errors, start = [], [], Barrier(8)

    def work(seed):
        start.wait()
        order = np.random.default_rng(seed).permutation(len(letters) + len(others) + 1)
        for i in order:
            data = [*letters, *others, bad][i]
            try:
                new.extend([data] * (post.offer(data, "south") is not None))
            except Rejected:
                pass
            except Exception as error:
                errors.append(error)

    threads = [Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(new) == sorted(letters[ROUNDS:])
    assert post.rejected == {
        "south: not finite": 8,
        "south: a second letter of south for the same round, with other content": 8 * ROUNDS,
    }
    for n, data in enumerate(letters[:ROUNDS], 1):
        assert post.get("south", "message", n) == data


def test_whoever_waits_is_told(post):
    waiting, told = Event(), []

    def wait():
        with post.changed:
            waiting.set()  # nothing can be offered before wait() lets go of the lock
            told.append(post.changed.wait(timeout=10))

    thread = Thread(target=wait)
    thread.start()
    waiting.wait()
    post.offer(SEALED, "south")
    thread.join()
    assert told == [True]
