"""Tests import the scripts from the top of the repository; ../shared is optional: a test says where it lacks."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


@pytest.fixture
def shared():
    if not SHARED.exists():
        pytest.skip(f"published data not at {SHARED.name}/ beside the checkout")
    return SHARED
