"""A part of the attacks, and the differential oracles, on tiny models; `make proof` runs the whole.

Risk: a client that is large, malformed, slow or gone takes the server, a slot or a neighbour's answer with it; an answer
depends on how it is sent, on its neighbours, on the cache or on the protocol.
"""

import asyncio

import pytest
from battery import BATTERY
from differential import ORACLES
from server import LENIENT, Server, tiny_model
from soak import BOUNDED, soak

SCALE = 0.1


@pytest.mark.parametrize("attack", BATTERY, ids=lambda f: f.__name__)
def test_bears(server, attack):
    print(asyncio.run(attack(server.port, SCALE)))


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda f: f.__name__)
def test_agrees(server, oracle):
    print(asyncio.run(oracle(server.port)))


def test_memory_stays(binary, tmp_path):
    """60 s, the first 20 of which fill caches and allocators: not all of them in so short a time, so 2 % here and 1 % in
    the long run of `make proof`."""
    with Server([binary, "serve"], tiny_model("qwen35-r2"), [*LENIENT, *BOUNDED], tmp_path / "server.log") as server:
        print(asyncio.run(soak(server, seconds=60, most=0.02)))
