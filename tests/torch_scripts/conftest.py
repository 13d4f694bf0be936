"""The process that runs scripts, for all tests: it loads torch once."""

import pytest


@pytest.fixture(scope="session")
def runner():
    from test_scripts import Runner

    found = Runner()
    yield found
    with found.process as process:  # which closes its pipes, and waits
        process.stdin.close()
