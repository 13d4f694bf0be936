"""Options of the test suite."""


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="write golden/scenarios anew, then compare"
    )
