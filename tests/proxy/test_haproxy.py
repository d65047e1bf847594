"""Two replicas behind HAProxy as deploy/haproxy has it.

Risk: an example configuration that is printed but does not work: streams held back, requests lost when a replica drains.
"""

import asyncio

import pytest
from behind import Haproxy, Site, drained, unbuffered


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with Site(Haproxy(), tmp_path_factory.mktemp("haproxy")) as found:
        yield found


def test_streams_pass_as_they_come(site):
    asyncio.run(unbuffered(site))


def test_a_draining_replica_loses_no_request(site):
    asyncio.run(drained(site, clients=6, rounds=2))
