"""``dynadp design``, ``tradeoff`` and ``reproduce``, as typed."""

import json
from pathlib import Path

import pytest

from dynadp.data.datasets.synthetic import census
from support.run_files import write_plain
from support.typed import dynadp


@pytest.mark.parametrize(("fit", "alpha"), [("0.2 25 0.35", 0.1422), ("20 20 0.35", 0.4533)])
def test_design_solves_the_papers_examples(fit, alpha):
    found = json.loads(dynadp(f"design --loss-fit {fit} --utility 0.02 6 9 1 --json").stdout)
    assert found["alpha"] == pytest.approx(alpha, abs=1e-4)
    assert found["interior"]
    for mechanism, more in (("primal", ""), ("dual", " --jacobian-share 0.01")):
        line = f"--mechanism {mechanism} --dimension 105{more} --rounds 100 --delta 1e-5"
        words = dynadp(f"design --loss-fit {fit} {line}").output
        assert "an interior maximum of the curve, not measured" in words
        priced = json.loads(dynadp(f"design --loss-fit {fit} {line} --json").stdout)["total"]
        own = json.loads(dynadp(f"account {line} --alpha {found['alpha']!r} --json").stdout)
        assert priced["epsilon"] == own["epsilon"]  # by the mechanism's own events
        assert f"100 rounds of {mechanism} perturbation cost epsilon" in words
    for part in (
        "--rounds 100",
        "--rounds 100 --dimension 105 --delta 1e-5",
        "--jacobian-share 0.01",
    ):
        assert dynadp(f"design --loss-fit {fit} {part}").exit_code == 2


@pytest.mark.parametrize(("mechanism", "unit"), [("primal", "alpha"), (None, "mu")])
def test_tradeoff_recommends_one_and_tells_its_total(tmp_path, monkeypatch, mechanism, unit):
    monkeypatch.chdir(tmp_path)
    data = census(6000, seed=1, nodes=2)
    for i, node in enumerate(("a", "b")):
        rows = [",".join(data.train)]
        rows += [
            ",".join(str(data.train[c][j]) for c in data.train)
            for j in range(6000)
            if data.node[j] == i
        ]
        Path(f"{node}.csv").write_text("\n".join(rows) + "\n")
    line = (
        "init . --node a=a.csv --node b=b.csv --label income --negative low --positive high "
        "--numeric age:17:90 --numeric schooling:0:20 --numeric hours:0:99"
    )
    assert dynadp(line).exit_code == 0  # without ledgers: nothing is spent
    write_plain()
    if mechanism:
        file = Path("run.toml")
        text = file.read_text()
        file.write_text(text.replace('# mechanism = "sum"', f'mechanism = "{mechanism}"'))
    result = dynadp("tradeoff run.toml --draws 3 --range 0.05 2 --out sweep --json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    alphas = [point[unit] for point in found["points"]]
    assert (min(alphas), max(alphas)) == pytest.approx((0.05, 2), rel=5e-3)
    assert found[unit] in alphas
    assert found["epsilon"] > 0
    assert all(Path(path).stat().st_size > 1000 for path in found["pictures"])
    assert "SIMULATION" in found["words"][0]
    assert "3 seeded draws" in found["words"][0]
    assert "spans the 10% to 90% quantiles of the draws of the noise" in found["words"][1]
    again = dynadp("tradeoff run.toml --out sweep")
    assert again.exit_code == 2
    assert "nothing is overwritten" in again.output


def test_reproduce_refuses_a_folder_that_holds_anything(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    result = dynadp(f"reproduce --quick --out {tmp_path}")
    assert result.exit_code == 2
    assert "nothing is overwritten" in result.output
