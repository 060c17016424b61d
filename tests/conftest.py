"""Tests import the scripts as they lie at the top of the repository; files of ../shared are optional and said to be missing."""

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
