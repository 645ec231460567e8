"""View API client: requests over HTTPS with the credentials of the kubeconfig; and the questions of `whatif`.

The API server forwards the request to the scheduler with the user's name, so every kind of credentials works.
Only the standard library is imported, so that a command that reads a page is quick.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from json import JSONDecodeError, loads
from typing import Any, Final, Self
from urllib.parse import quote, urlencode, urlsplit

import click

from fluence.commands import view
from fluence.errors import FluenceError, InvalidInput
from fluence.kube.access import Access, find_access
from fluence.names import VIEW_GROUP
from fluence.yaml_loader import read_documents

BASE: Final = f"/apis/{VIEW_GROUP}/v1"
PAGE: Final = 1000
WHOLE: Final = 20_000  # rows of a page with selected columns only
_TIMEOUT_SECONDS: Final = 20.0
MAX_BYTES: Final = 256 << 20


class Unanswered(FluenceError):
    """The view API did not answer, and why. ``status`` is 0 if there was no response at all."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ViewClient:
    """One user of one cluster."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.timeout = _TIMEOUT_SECONDS
        self._connection: HTTPConnection | None = None

    @classmethod
    def of(cls, kubeconfig: str | None, context: str | None) -> Self:
        """The client for a kubeconfig."""
        return cls(find_access(kubeconfig=kubeconfig, context=context))

    def items(
        self,
        resource: str,
        namespace: str | None,
        query: Mapping[str, str] | None = None,
        *,
        most: int | None = None,
        columns: Sequence[str] = (),
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """All pages of a resource, or the first ``most`` rows, and the last page. ``columns``: the needed
        fields, if not all are: a page then has many more rows and is smaller."""
        rows: list[dict[str, Any]] = []
        asked = dict(query or {})
        size = PAGE
        if columns:
            asked["columns"], size = ",".join(columns), WHOLE
        while True:
            if resource != "usage":  # which has one page
                asked["limit"] = str(size if most is None else min(size, most - len(rows)))
            try:
                page = self.get(path_of(resource, namespace), asked)
            except Unanswered as error:
                if columns and error.status == 400 and "columns" in str(error):
                    return self.items(resource, namespace, query, most=most)  # an earlier version
                raise
            if "columns" in page:
                titles = page["columns"]
                rows += [dict(zip(titles, values, strict=True)) for values in page["rows"]]
            else:
                rows += page["items"]
            if not page["metadata"].get("continue") or (most is not None and len(rows) >= most):
                return rows, page
            asked["continue"] = page["metadata"]["continue"]

    def get(
        self, path: str, query: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """One answer as data. Raises `Unanswered` with the reason if the API gives none."""
        return self._data(self.send(path, query or {}, timeout), path, timeout)

    def post(self, path: str, body: bytes, *, timeout: float | None = None) -> dict[str, Any]:
        """The same for a request with a body."""
        return self._data(self.send(path, {}, timeout, method="POST", body=body), path, timeout)

    def _data(self, response: HTTPResponse, path: str, timeout: float | None) -> dict[str, Any]:
        try:
            body = response.read(MAX_BYTES)
        except (OSError, HTTPException) as error:
            self.close()
            raise Unanswered(f"{self.access.server}: {cause(error, timeout or self.timeout)}") from None
        try:
            data = loads(body)
        except (JSONDecodeError, UnicodeDecodeError):
            raise Unanswered(
                _not_json(f"{self.access.server}{path}", response.status), response.status
            ) from None
        if response.status != 200 or not isinstance(data, dict):
            message = data.get("message", "") if isinstance(data, dict) else ""
            raise Unanswered(_refusal(path, response.status, str(message)), response.status)
        return data

    def events(
        self, resource: str, namespace: str | None, query: Mapping[str, str]
    ) -> Iterator[dict[str, Any]]:
        """The first page whenever it has changed, until the server ends the stream."""
        path = path_of(resource, namespace)
        response = self.send(path, {**query, "watch": "true"}, timeout=60.0)
        if response.status != 200:
            body = response.read(1 << 20)
            with suppress(JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
                raise Unanswered(_refusal(path, response.status, loads(body)["message"]), response.status)
            raise Unanswered(_refusal(path, response.status, ""), response.status)
        while line := _line(response):
            if line.startswith(b'data: {"kind"'):  # the last event and keep-alives have none
                yield loads(line[6:])

    def stream(
        self, resource: str, namespace: str | None, query: Mapping[str, str] | None = None
    ) -> Iterator[list[dict[str, Any]]]:
        """All rows whenever they have changed, until the server ends the stream. An event has the first page;
        the others are read on a separate connection."""
        asked = {"limit": str(PAGE), **(query or {})}
        others = ViewClient(self.access)
        try:
            for page in self.events(resource, namespace, asked):
                rows = page["items"]
                while token := page["metadata"].get("continue"):
                    page = others.get(path_of(resource, namespace), {**asked, "continue": token})
                    rows += page["items"]
                yield rows
        finally:
            others.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def send(
        self,
        path: str,
        query: Mapping[str, str],
        timeout: float | None = None,
        *,
        method: str = "GET",
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> HTTPResponse:
        timeout = timeout or self.timeout
        target = path + (f"?{urlencode(query)}" if query else "")
        reused = self._connection is not None
        try:
            if self._connection is None:
                self._connection = self._connect()
            connection = self._connection
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
            connection.timeout = timeout
            headers = self._headers()
            if body is not None:
                headers["Content-Type"] = content_type
            connection.request(method, target, body, headers)
            return connection.getresponse()
        except (OSError, HTTPException) as error:
            self.close()
            if reused:  # the server may have closed it meanwhile
                return self.send(path, query, timeout, method=method, body=body, content_type=content_type)
            raise Unanswered(f"{self.access.server}: {cause(error, timeout)}") from None

    # -- credentials -----------------------------------------------------------------------------------------

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "kubectl-fluence"}
        access = self.access
        token = access.token
        if access.token_file is not None:
            token = access.token_file.read_text().strip()
        if access.exec_plugin is not None:
            header = self._from_plugin().header
            if header:
                headers["Authorization"] = header
        elif token:
            headers["Authorization"] = f"Bearer {token}"
        elif access.username is not None:
            pair = f"{access.username}:{access.password or ''}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        if access.impersonate:
            headers["Impersonate-User"] = access.impersonate
        return headers

    def _from_plugin(self) -> Any:
        """The credentials of the exec plugin, which is run once."""
        if not hasattr(self, "_plugin"):
            from fluence import event_loop  # imported late: most kubeconfigs need no plugin
            from fluence.kube.auth import Authenticator

            self._plugin = event_loop.run(Authenticator(self.access).credentials)
        return self._plugin

    def _connect(self) -> HTTPConnection:
        access = self.access
        url = urlsplit(access.server)
        host = url.hostname or ""
        proxy = urlsplit(access.proxy_url or _proxy(url.scheme, host))
        at, port = (proxy.hostname, proxy.port) if proxy.hostname else (host, url.port)
        if url.scheme != "https":
            return HTTPConnection(host, url.port, timeout=self.timeout)
        connection = _Connection(
            at or "",
            port or 443,
            timeout=self.timeout,
            context=self._context(),
            name=access.tls_server_name,
        )
        if proxy.hostname:
            connection.set_tunnel(host, url.port or 443)
        return connection

    def _context(self) -> ssl.SSLContext:
        access = self.access
        context = ssl.create_default_context(cadata=access.ca.decode() if access.ca else None)
        if access.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        certificate, key = access.client_cert, access.client_key
        if access.exec_plugin is not None:
            given = self._from_plugin()
            certificate, key = given.cert, given.key
        if certificate and key:
            # OpenSSL reads a chain only from a file: this one is in memory, if the system supports that.
            if hasattr(os, "memfd_create"):
                file = os.memfd_create("certificate")
                try:
                    os.write(file, certificate + b"\n" + key)
                    context.load_cert_chain(f"/proc/self/fd/{file}")
                finally:
                    os.close(file)
            else:
                from tempfile import NamedTemporaryFile

                with NamedTemporaryFile() as kept:
                    kept.write(certificate + b"\n" + key)
                    kept.flush()
                    context.load_cert_chain(kept.name)
        return context


class _Connection(HTTPSConnection):
    """TLS for another name than that of the host, as a kubeconfig may require."""

    def __init__(
        self, host: str, port: int, *, timeout: float, context: ssl.SSLContext, name: str | None
    ) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._name = name
        self._tls = context

    def connect(self) -> None:
        if self._name is None:
            super().connect()
            return
        HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


def _refusal(path: str, status: int, message: str) -> str:
    """The reason for a missing answer, for a user."""
    if message.startswith("you may not list pods"):
        return message  # from the view itself
    if status == 403 and path.startswith(BASE):
        resource = path.removeprefix(BASE).partition("?")[0].split("/")
        what = resource[3] if resource[1] == "namespaces" else resource[1]
        return (
            f"you may not read `{what}` of the scheduler's view: an administrator lets you by binding the "
            "ClusterRole fluence-view-reader to you"
        )
    return message or f"HTTP status {status}"


def _not_json(url: str, status: int) -> str:
    """The same for an answer that is not JSON. If no endpoint serves the API, the API server says so in plain
    text."""
    if status in (502, 503, 504):
        return "the API server does not reach the scheduler's view: `fluence doctor` says if a scheduler runs"
    return f"{url}: not an answer of an API server"


def path_of(resource: str, namespace: str | None, name: str = "") -> str:
    """The path of a resource, in a namespace or in all."""
    where = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{BASE}{where}/{resource}" + (f"/{quote(name, safe='')}" if name else "")


def _line(response: HTTPResponse) -> bytes:
    """The next line of a stream; empty at its end. A minute of silence also ends it."""
    try:
        return response.readline(MAX_BYTES)
    except (OSError, HTTPException):
        return b""


def _proxy(scheme: str, host: str) -> str:
    if not (os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")):
        return ""
    from urllib.request import getproxies, proxy_bypass

    return "" if proxy_bypass(host) else getproxies().get(scheme, "")


def cause(error: BaseException, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:.0f} s"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


_SECONDS: Final = 55.0  # the API server ends a request after a minute


@dataclass(frozen=True, slots=True)
class ViewAnswer:
    """An answer of the scheduler's, which has made the text."""

    data: dict[str, Any]

    @property
    def starts_now(self) -> bool:
        return bool(self.data["startsNow"])

    @property
    def never(self) -> bool:
        return bool(self.data["never"])

    def lines(self, shown: int | None = None) -> list[str]:
        return list(self.data["wide" if shown is None else "lines"])

    def to_value(self) -> dict[str, Any]:
        return dict(self.data["answer"])


def ask_view(
    sources: Sequence[tuple[bytes, str]],
    *,
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
) -> ViewAnswer:
    """The answer about the manifests of all sources together: (text, name). `Unanswered` says why the view
    gives none."""
    files = [{"source": name, "documents": _documents(text, name)} for text, name in sources]
    client = ViewClient.of(kubeconfig, context)
    default = namespace or client.access.namespace or "default"
    spaces = {space or default for file in files for space in _namespaces(file["documents"])} or {default}
    if len(spaces) > 1:
        raise Unanswered("the view answers about one namespace at a time")
    body = json.dumps({"files": files}, default=str).encode()
    try:
        data = client.post(path_of("whatif", spaces.pop()), body, timeout=_SECONDS)
    finally:
        client.close()
    for note in data.get("notes", ()):
        click.echo(view.clean(f"note: {note}"), err=True)
    return ViewAnswer(data)


def _documents(text: bytes, source: str) -> list[Any]:
    documents = read_documents(text, source)
    for number, document in enumerate(documents, 1):
        if document is not None and not (
            isinstance(document, dict) and {"apiVersion", "kind"} <= document.keys()
        ):
            raise InvalidInput(
                "must be an object with apiVersion and kind", where=f"{source}: document {number}"
            )
    return documents


def _namespaces(documents: Any) -> list[str]:
    """Those that objects name; an empty one for an object that names none."""
    found = []
    for document in documents if isinstance(documents, list) else ():
        if not isinstance(document, dict):
            continue
        items = document.get("items")
        if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
            found += _namespaces(items)
        elif isinstance(meta := document.get("metadata"), dict):
            found.append(str(meta.get("namespace") or ""))
    return found
