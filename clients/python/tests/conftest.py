"""A running service is at ``SANDCELL_URL``; without one every test that needs it fails."""

import asyncio
import os

import pytest

from sandcell import AsyncSandbox, Client


@pytest.fixture(scope="session")
def url():
    return os.environ["SANDCELL_URL"]


@pytest.fixture
def client(url):
    with Client(url) as client:
        yield client


@pytest.fixture
def sandbox(client):
    with client.create("pytest") as sandbox:
        yield sandbox


@pytest.fixture
def run():
    """Runs an async function with a sandbox of its own."""

    def run(body):
        async def main():
            async with AsyncSandbox.create("pytest") as sandbox:
                return await body(sandbox)

        return asyncio.run(main())

    return run
