import numpy as np

from dynadp.consensus.anderson import Anderson


def linear_map(n, seed):
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(n, n)))
    return Q @ np.diag(np.linspace(-0.5, 0.95, n)) @ Q.T, rng.normal(size=n)


def iterate(depth, steps, replicas=3, n=8):
    maps = [linear_map(n, seed) for seed in range(replicas)]
    fixed = np.array([np.linalg.solve(np.eye(n) - A, c) for A, c in maps])
    x, mixer = np.zeros((replicas, n)), Anderson(depth)
    for _ in range(steps):
        r = np.array([A @ v + c for (A, c), v in zip(maps, x, strict=True)]) - x
        x, _ = mixer.step(x, r)
    return np.linalg.norm(x - fixed, axis=1)


def test_linear_maps_are_solved_in_about_as_many_steps_as_dimensions():
    assert iterate(depth=8, steps=14).max() < 1e-8
    assert iterate(depth=0, steps=14).min() > 1e-2


def test_replicas_do_not_influence_each_other():
    maps = [linear_map(5, seed) for seed in range(2)]

    def run(chosen):
        x, mixer = np.zeros((len(chosen), 5)), Anderson(4)
        for _ in range(6):
            x, _ = mixer.step(
                x,
                np.array([maps[i][0] @ v + maps[i][1] for i, v in zip(chosen, x, strict=True)]) - x,
            )
        return x

    np.testing.assert_allclose(run([0, 1])[1], run([1])[0], rtol=1e-9)


def test_depth_zero_takes_plain_steps_and_still_notices_growth():
    mixer = Anderson(0)
    x, grew = mixer.step(np.zeros((1, 2)), np.ones((1, 2)))
    np.testing.assert_array_equal(x, np.ones((1, 2)))
    assert not grew
    assert not mixer.step(x, 1.9 * np.ones((1, 2)))[1]
    assert mixer.step(x, 9 * np.ones((1, 2)))[1]


def test_a_replica_whose_residual_grows_forgets_and_steps_plainly():
    mixer = Anderson(3)
    x = np.zeros((2, 2))
    x, _ = mixer.step(x, np.array([[1.0, 0.0], [1.0, 0.0]]))
    x, _ = mixer.step(x, np.array([[0.5, 0.1], [0.5, 0.1]]))
    far = np.array([[50.0, 0.0], [0.2, 0.1]])
    mixed, grew = mixer.step(x, far)
    assert grew
    np.testing.assert_allclose(mixed[0], x[0] + far[0])
    assert not np.allclose(mixed[1], x[1] + far[1])


def test_forget_starts_over():
    mixer = Anderson(3)
    for scale in (1.0, 0.5, 0.3):
        mixer.step(np.full((1, 2), scale), np.array([[scale, -scale]]))
    mixer.forget()
    x, grew = mixer.step(np.zeros((1, 2)), np.array([[9.0, 9.0]]))
    np.testing.assert_array_equal(x, [[9.0, 9.0]])
    assert not grew
