"""What the tests of MCP servers share."""

from collections.abc import Iterator

import pytest

from support.tools.mcp_servers import Servers, running_servers


@pytest.fixture(scope="package")
def servers() -> Iterator[Servers]:
    with running_servers() as running:
        yield running
