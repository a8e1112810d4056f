"""The first tier sees every value of every parameter, and the second all combinations."""

from itertools import product

import pytest

from support.tiers import spare


@pytest.mark.parametrize("sizes", [(7, 7), (2, 7), (3, 6, 2), (4, 1), (5, 5, 5)])
def test_every_value_stays_in_as_few_cases_as_can_be(sizes):
    cases = [(case, set(enumerate(case))) for case in product(*map(range, sizes))]
    left = {case for case, _ in cases} - set(spare(cases))
    assert {(i, value) for case in left for i, value in enumerate(case)} == {
        (i, value) for i, size in enumerate(sizes) for value in range(size)
    }
    assert len(left) == max(sizes)


def test_values_that_are_not_crossed_all_stay():
    cases = [(case, {(0, case), (1, 2 * case)}) for case in range(3)]
    assert not spare(cases)
    assert spare([*cases, (3, {(0, 1), (1, 0)})]) == [3]
