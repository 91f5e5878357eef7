"""Calls of etcd's HTTP gateway: JSON over POST, on the client port of any member.

1. Keys and values are base64; 64-bit numbers come as strings; members that are 0, false or empty are left out.
2. A call goes to one endpoint, with a deadline. The next call uses another one if this one failed.
3. A call that fails before it was sent, or that only reads, may be repeated elsewhere. After any other failure nobody
   knows whether etcd has applied it: `CallLost`.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from sparrow.model.errors import Refused, SettingsError, Unavailable
from sparrow.settings import ReplicationSettings

_AUTHENTICATE = "/v3/auth/authenticate"


class CallLost(Unavailable):
    """A call got no answer; it may have been carried out."""


class KeyValue(NamedTuple):
    """A key of etcd."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int


class RangeResult(NamedTuple):
    """The keys of a range, as of one revision."""

    revision: int
    keys: list[KeyValue]


def parse_endpoints(text: str) -> list[str]:
    """Return the endpoints in a list that is separated by `;` or `,`; those without a scheme get `http://`."""
    endpoints = [part.strip().rstrip("/") for part in text.replace(",", ";").split(";") if part.strip()]
    return [endpoint if "://" in endpoint else f"http://{endpoint}" for endpoint in endpoints]


class EtcdGateway:
    """A client of one etcd cluster."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout_s: float = 2.0,
        user: str | None = None,
        password: str | None = None,
        ca_file: str | None = None,
        certificate_files: tuple[str, str] | None = None,
    ) -> None:
        """Connect to `endpoints`, such as `http://10.0.0.1:2379`. `certificate_files`: certificate and key."""
        if not endpoints:
            raise Refused("etcd needs at least one endpoint, such as http://127.0.0.1:2379")
        self.endpoints, self.timeout_s = list(endpoints), timeout_s
        self._user, self._password, self._token = user, password, None
        self._position = 0
        self._http = httpx.AsyncClient(
            verify=_tls_context(ca_file, certificate_files), timeout=timeout_s, trust_env=False
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # -- calls --------------------------------------------------------------------------------------------------------

    async def range(self, prefix: str) -> RangeResult:
        """Return all keys with a prefix, linearizably."""
        start = prefix.encode()
        end = start[:-1] + bytes([start[-1] + 1])
        found = await self.call("/v3/kv/range", {"key": _encode(start), "range_end": _encode(end)}, is_repeatable=True)
        return RangeResult(_revision(found), [_key_value(pair) for pair in found.get("kvs", ())])

    async def transaction(self, compare: Sequence[dict[str, Any]], success: Sequence[dict[str, Any]]) -> bool:
        """Write, if the comparisons hold; return whether they did. Raises `CallLost` when nobody knows."""
        done = await self.call("/v3/kv/txn", {"compare": list(compare), "success": list(success)})
        return bool(done.get("succeeded", False))

    async def grant_lease(self, ttl_s: int) -> int:
        """Return the id of a new lease. etcd may give it a longer time than asked for."""
        granted = await self.call("/v3/lease/grant", {"TTL": ttl_s}, is_repeatable=True)
        return int(granted["ID"])

    async def keep_alive(self, lease_id: int, timeout_s: float) -> bool:
        """Extend a lease; return False if it is gone."""
        answered = await self.call("/v3/lease/keepalive", {"ID": lease_id}, timeout_s=timeout_s, is_repeatable=True)
        return int(answered.get("result", {}).get("TTL", 0)) > 0

    async def watch(self, prefix: str, start_revision: int) -> AsyncIterator[int]:
        """Yield the revision of each change of keys with a prefix. Ends when etcd or the network ends it."""
        start = prefix.encode()
        request = {
            "create_request": {
                "key": _encode(start),
                "range_end": _encode(start[:-1] + bytes([start[-1] + 1])),
                "start_revision": start_revision,
            }
        }
        endpoint = self.endpoints[self._position % len(self.endpoints)]
        try:
            async with self._http.stream(
                "POST",
                f"{endpoint}/v3/watch",
                json=request,
                headers=await self._headers(),
                timeout=httpx.Timeout(self.timeout_s, read=None),
            ) as response:
                if response.status_code >= 400:
                    self._token = None
                    return
                async for line in response.aiter_lines():
                    result = json.loads(line).get("result", {}) if line else {}
                    if result.get("canceled"):
                        return
                    if result.get("events"):
                        yield _revision(result)
        except (httpx.HTTPError, ssl.SSLError, ValueError):
            self._position += 1

    async def call(
        self, path: str, body: dict[str, Any], *, timeout_s: float | None = None, is_repeatable: bool = False
    ) -> dict[str, Any]:
        """Return the answer to a call. Try each endpoint in turn as long as that cannot carry it out twice."""
        failure: Exception | None = None
        for _ in self.endpoints:
            endpoint = self.endpoints[self._position % len(self.endpoints)]
            try:
                response = await self._http.post(
                    endpoint + path, json=body, headers=await self._headers(path), timeout=timeout_s or self.timeout_s
                )
                if _token_is_over(response) and self._user is not None and path != _AUTHENTICATE:
                    self._token = None  # a simple token lives five minutes
                    response = await self._http.post(endpoint + path, json=body, headers=await self._headers(path))
                if response.status_code < 400:
                    return _parse(response)
                failure = _failure(endpoint, response)
                if response.status_code < 500:
                    raise failure
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                self._position += 1
                failure = Unavailable(f"etcd at {endpoint} cannot be reached: {error}")
                continue  # it was never sent
            except (httpx.HTTPError, ssl.SSLError) as error:  # httpx passes an alert on that comes after the handshake
                failure = CallLost(f"etcd at {endpoint} did not answer {path}: {error!r}")
            self._position += 1
            if not is_repeatable:
                raise failure
        assert failure is not None
        raise failure

    async def _headers(self, path: str = "") -> dict[str, str]:
        if self._user is None or path == _AUTHENTICATE:
            return {}
        if self._token is None:
            if not self._password:
                raise Refused(
                    f"etcd's account {self._user!r} needs a password: set SPARROW_REPLICATION__ETCD_PASSWORD, or "
                    "replication.etcd_password_file"
                )
            given = await self.call(_AUTHENTICATE, {"name": self._user, "password": self._password}, is_repeatable=True)
            self._token = given["token"]
        return {"Authorization": str(self._token)}


def open_gateway(settings: ReplicationSettings) -> EtcdGateway:
    """Return a client of the etcd that the settings name, with its certificates and its account."""
    endpoints = parse_endpoints(settings.etcd)
    has_tls = bool(settings.etcd_ca or settings.etcd_cert)
    plain = [endpoint for endpoint in endpoints if not endpoint.startswith("https://")]
    if has_tls and plain:
        raise SettingsError("replication.etcd", plain[0], "the settings", "an endpoint that begins with https://")
    if bool(settings.etcd_cert) != bool(settings.etcd_key):
        raise SettingsError(
            "replication.etcd_key", settings.etcd_key, "the settings", "the key of etcd_cert, both or neither"
        )
    for key, path in (
        ("etcd_ca", settings.etcd_ca),
        ("etcd_cert", settings.etcd_cert),
        ("etcd_key", settings.etcd_key),
        ("etcd_password_file", settings.etcd_password_file),
    ):
        if path and not Path(path).is_file():
            raise SettingsError(f"replication.{key}", path, "the settings", "a file that exists")
    password = settings.etcd_password.get_secret_value() if settings.etcd_password is not None else None
    if settings.etcd_password_file:
        password = Path(settings.etcd_password_file).read_text().strip()
    try:
        return EtcdGateway(
            endpoints,
            user=settings.etcd_user or None,
            password=password,
            ca_file=settings.etcd_ca or None,
            certificate_files=(settings.etcd_cert, settings.etcd_key) if settings.etcd_cert else None,
        )
    except (ssl.SSLError, OSError) as cause:
        raise SettingsError(
            "replication.etcd_cert", settings.etcd_cert, "the settings", f"PEM files that can be read ({cause})"
        ) from cause


def _tls_context(ca_file: str | None, certificate_files: tuple[str, str] | None) -> ssl.SSLContext | bool:
    if ca_file is None and certificate_files is None:
        return True
    context = ssl.create_default_context(cafile=ca_file)
    if certificate_files is not None:
        context.load_cert_chain(*certificate_files)
    return context


# -- requests ---------------------------------------------------------------------------------------------------------


def put(key: str, value: bytes, lease_id: int = 0) -> dict[str, Any]:
    """Return a write for a transaction."""
    return {"request_put": {"key": _encode(key.encode()), "value": _encode(value), "lease": lease_id}}


def delete(key: str) -> dict[str, Any]:
    """Return a deletion for a transaction."""
    return {"request_delete_range": {"key": _encode(key.encode())}}


def created_at(key: str, revision: int) -> dict[str, Any]:
    """Return the condition that the key was created at this revision; 0: that it does not exist."""
    return {"key": _encode(key.encode()), "target": "CREATE", "result": "EQUAL", "create_revision": revision}


def modified_at(key: str, revision: int) -> dict[str, Any]:
    """Return the condition that the key was written last at this revision."""
    return {"key": _encode(key.encode()), "target": "MOD", "result": "EQUAL", "mod_revision": revision}


def has_value(key: str, value: bytes) -> dict[str, Any]:
    """Return the condition that the key has this value."""
    return {"key": _encode(key.encode()), "target": "VALUE", "result": "EQUAL", "value": _encode(value)}


# -- answers ----------------------------------------------------------------------------------------------------------


def _encode(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _key_value(pair: dict[str, Any]) -> KeyValue:
    return KeyValue(
        base64.b64decode(pair["key"]).decode(),
        base64.b64decode(pair.get("value", "")),
        int(pair["create_revision"]),
        int(pair["mod_revision"]),
    )


def _revision(answer: dict[str, Any]) -> int:
    return int(answer["header"]["revision"])


def _parse(response: httpx.Response) -> dict[str, Any]:
    try:
        parsed = json.loads(response.text.splitlines()[0])
    except (ValueError, IndexError) as cause:
        raise CallLost(f"etcd answered with something that is no JSON: {response.text[:100]!r}") from cause
    if not isinstance(parsed, dict):
        raise CallLost(f"etcd answered with something that is no object: {response.text[:100]!r}")
    return parsed


def _token_is_over(response: httpx.Response) -> bool:
    return response.status_code == 401 or (response.status_code == 400 and "invalid auth token" in response.text)


def _failure(endpoint: str, response: httpx.Response) -> Exception:
    text = f"etcd at {endpoint} answered {response.status_code}: {response.text[:200].strip()}"
    if "user name is empty" in response.text:
        text = f"etcd at {endpoint} requires an account: set replication.etcd_user and its password"
    elif "authentication failed" in response.text:
        text = f"etcd at {endpoint} does not accept the account or its password: check replication.etcd_user"
    elif "CommonName" in response.text:
        text = (
            f"etcd at {endpoint} refuses a client certificate with a common name (CN) while its accounts are on: "
            "make replication.etcd_cert without one"
        )
    elif "permission denied" in response.text:
        text = f"the account may not read and write the keys below sparrow/ of etcd at {endpoint}: grant it a role"
    return Refused(text) if response.status_code < 500 else CallLost(text)
