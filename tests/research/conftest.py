"""What tests of audits share."""

import pytest


@pytest.fixture
def quick(monkeypatch):
    """A shorter search: what the command line shows is tested here, not how near it comes."""
    monkeypatch.setattr("dynadp.research.audit.verdict.PILOT", 500)
