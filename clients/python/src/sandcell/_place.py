"""Where a sandbox is, and what is reached in it without a request to the service."""

from __future__ import annotations

import httpx


class Place:
    """A sandbox of a service.

    Attributes:
        id: Names it in every call.
    """

    def __init__(self, service_url: str, sandbox_id: str) -> None:
        self._service_url = service_url
        self.id = sandbox_id

    def port_url(self, port: int, path: str = "/") -> str:
        """Address of a server that listens on a port inside, for programs and simple pages.

        Requests to it carry the service's key, as others do.
        """
        return f"{self._service_url}/sandbox/{self.id}/port/{port}/{path.lstrip('/')}"

    def browser_url(self, port: int, path: str = "/", *, domain: str = "localhost") -> str:
        """Address of such a server with an origin of its own, for applications in a browser.

        Args:
            port: Where it listens inside.
            path: Path and query.
            domain: The service's ``server.ports_domain``.
        """
        service = httpx.URL(self._service_url)
        port_suffix = f":{service.port}" if service.port else ""
        return f"{service.scheme}://{port}-{self.id}.{domain}{port_suffix}/{path.lstrip('/')}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self._service_url!r})"
