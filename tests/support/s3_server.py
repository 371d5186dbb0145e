"""An S3 server for tests: what ``pyarrow.fs`` asks of one, in this process, objects in memory.

It counts requests and bytes, knows one access key, and can stop taking writes at any request, which
is how a test kills a job in the middle: nothing that the killed job would have done afterwards
arrives, its own tidying up included. Signatures are not verified, only who claims to have signed.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

ACCESS_KEY = "TESTACCESSKEY"
SECRET_KEY = "tests-secret-of-nobody"  # noqa: S105 - of this server only
BUCKET = "bucket"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""For the environment of whoever asks."""

_SOCKET_TIMEOUT_S = 10
_HANG_UP_S = 5
_DATE = "Sat, 21 Nov 2026 10:00:00 GMT"
_MOMENT = "2026-11-21T10:00:00.000Z"
_MOST_KEYS = 1000


class Request(NamedTuple):
    """What was asked; `sent` are the bytes of an object that were given out."""

    method: str
    key: str
    query: str
    range: str | None
    sent: int


class S3Server:
    """Objects, and what was asked for them.

    Attributes
    ----------
    objects
        By key, in the one bucket.
    requests
        In the order in which they were answered.
    writes_left
        Writing requests that are still taken; None for any number.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.requests: list[Request] = []
        self.writes_left: int | None = None
        self.lock = threading.Lock()
        self.upload_numbers = itertools.count(1)
        self.host, self.port = "", 0

    # --- for tests ------------------------------------------------------------------------------

    def uri(self, path: str) -> str:
        """Return the URI of a path in the bucket."""
        server = f"endpoint_override={self.host}:{self.port}&scheme=http&region=us-east-1"
        return f"s3://{BUCKET}/{path}?{server}"

    def put_tree(self, directory: Path, prefix: str) -> None:
        """Put every file below a directory."""
        for path in directory.rglob("*"):
            if path.is_file():
                self.objects[f"{prefix}/{path.relative_to(directory)}"] = path.read_bytes()

    def tree(self, prefix: str) -> dict[str, bytes]:
        """Return the objects below a prefix."""
        start = f"{prefix.rstrip('/')}/"
        return {
            key.removeprefix(start): content
            for key, content in sorted(self.objects.items())
            if key.startswith(start) and not key.endswith("/")
        }

    def take(self) -> list[Request]:
        """Return the requests since the last call."""
        found, self.requests = self.requests, []
        return found

    def allows_write(self) -> bool:
        """Count a write; tell whether it is still taken."""
        with self.lock:
            if self.writes_left is None:
                return True
            self.writes_left = max(self.writes_left - 1, -1)
            return self.writes_left >= 0


@contextlib.contextmanager
def running_s3(host: str = "127.0.0.1") -> Iterator[S3Server]:
    """Serve until the ``with`` block ends; this process knows the access key meanwhile."""
    state = S3Server()

    class Handler(_Handler):
        server_state = state

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    state.host, state.port = host, server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        with mock.patch.dict(os.environ, CREDENTIALS):
            yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_HANG_UP_S)


class _Handler(BaseHTTPRequestHandler):
    server_state: S3Server
    protocol_version = "HTTP/1.1"
    timeout = _SOCKET_TIMEOUT_S
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Say nothing."""

    def handle_expect_100(self) -> bool:
        """Ask for the body at once: a client waits a second for this."""
        is_wanted = super().handle_expect_100()
        self.wfile.flush()
        return is_wanted

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_HEAD(self) -> None:
        self._serve(self._head)

    def do_PUT(self) -> None:
        self._serve(self._put, is_write=True)

    def do_POST(self) -> None:
        self._serve(self._post, is_write=True)

    def do_DELETE(self) -> None:
        self._serve(self._delete, is_write=True)

    def _serve(self, answer: Any, *, is_write: bool = False) -> None:
        try:
            self.body = self._read_body()
        except (ConnectionError, ValueError):  # the client died amid it: then it is no object
            self.close_connection = True
            return
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path.lstrip("/")).partition("/")
        self.key = key
        self.query = {
            name: values[-1]
            for name, values in parse_qs(parts.query, keep_blank_values=True).items()
        }
        self.sent = 0
        if f"Credential={ACCESS_KEY}/" not in self.headers.get("Authorization", ""):
            self._error(HTTPStatus.FORBIDDEN, "InvalidAccessKeyId")
        elif bucket and bucket != BUCKET:
            self._error(HTTPStatus.NOT_FOUND, "NoSuchBucket")
        elif is_write and not self.server_state.allows_write():
            self._error(HTTPStatus.FORBIDDEN, "AccessDenied")
        else:
            answer()
        self.server_state.requests.append(
            Request(self.command, key, parts.query, self.headers.get("Range"), self.sent)
        )

    # --- requests -------------------------------------------------------------------------------

    def _get(self) -> None:
        if not self.key:
            self._list()
            return
        content = self.server_state.objects.get(self.key)
        if content is None:
            self._error(HTTPStatus.NOT_FOUND, "NoSuchKey")
            return
        wanted = self.headers.get("Range")
        if wanted is None:
            self.sent = len(content)
            self._answer(content, headers=_object_headers(content))
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last) + 1 if last else len(content), len(content))
        if start >= len(content):
            self._error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "InvalidRange")
            return
        piece = content[start:stop]
        self.sent = len(piece)
        place = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        self._answer(piece, HTTPStatus.PARTIAL_CONTENT, _object_headers(content) | place)

    def _head(self) -> None:
        if not self.key:
            self._answer(b"")
            return
        content = self.server_state.objects.get(self.key)
        if content is None:
            self._answer(b"", HTTPStatus.NOT_FOUND)
            return
        self._answer(content, headers=_object_headers(content))

    def _put(self) -> None:
        state = self.server_state
        if not self.key:
            self._answer(b"")
            return
        source = self.headers.get("x-amz-copy-source")
        if source is not None:
            content = state.objects.get(unquote(source).lstrip("/").removeprefix(f"{BUCKET}/"))
            if content is None:
                self._error(HTTPStatus.NOT_FOUND, "NoSuchKey")
                return
            state.objects[self.key] = content
            self._xml("CopyObjectResult", f"<ETag>{_etag(content)}</ETag>")
        elif "uploadId" in self.query:
            state.uploads[self.query["uploadId"]][int(self.query["partNumber"])] = self.body
            self._answer(b"", headers={"ETag": _etag(self.body)})
        elif self._is_refused():
            self._error(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
        else:
            state.objects[self.key] = self.body
            self._answer(b"", headers={"ETag": _etag(self.body)})

    def _is_refused(self) -> bool:
        """Whether something is there where nothing may be, which is how Delta commits."""
        wants_none = self.headers.get("If-None-Match") == "*"
        return wants_none and self.key in self.server_state.objects

    def _post(self) -> None:
        state = self.server_state
        if "uploads" in self.query:
            upload = f"upload-{next(state.upload_numbers)}"
            state.uploads[upload] = {}
            names = f"<Bucket>{BUCKET}</Bucket><Key>{escape(self.key)}</Key>"
            self._xml("InitiateMultipartUploadResult", f"{names}<UploadId>{upload}</UploadId>")
        elif "uploadId" in self.query:
            parts = state.uploads.pop(self.query["uploadId"])
            content = b"".join(parts[number] for number in sorted(parts))
            state.objects[self.key] = content
            self._xml("CompleteMultipartUploadResult", f"<ETag>{_etag(content)}</ETag>")
        elif "delete" in self.query:
            for element in ET.fromstring(self.body).iter():  # noqa: S314 - of our own client
                if element.tag.endswith("Key"):
                    state.objects.pop(element.text or "", None)
            self._xml("DeleteResult", "")
        else:
            self._error(HTTPStatus.NOT_IMPLEMENTED, "NotImplemented")

    def _delete(self) -> None:
        if "uploadId" in self.query:
            self.server_state.uploads.pop(self.query["uploadId"], None)
        else:
            self.server_state.objects.pop(self.key, None)
        self._answer(b"", HTTPStatus.NO_CONTENT)

    def _list(self) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        behind = self.query.get("continuation-token") or self.query.get("start-after", "")
        most = min(int(self.query.get("max-keys", _MOST_KEYS)), _MOST_KEYS)
        found: list[str] = []
        with self.server_state.lock:
            keys = sorted(self.server_state.objects)
        for key in keys:
            if not key.startswith(prefix):
                continue
            name, mark, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            entry = f"{prefix}{name}{delimiter}" if mark else key
            if entry > behind and entry not in found[-1:]:
                found.append(entry)
        page, is_cut = found[:most], len(found) > most
        url = self.query.get("encoding-type") == "url"
        body = "".join(self._listed(entry, delimiter, url=url) for entry in page)
        more = (
            f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if is_cut else ""
        )
        self._xml(
            "ListBucketResult",
            f"<Name>{BUCKET}</Name><KeyCount>{len(page)}</KeyCount><MaxKeys>{most}</MaxKeys>"
            f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>{more}{body}",
        )

    def _listed(self, entry: str, delimiter: str, *, url: bool) -> str:
        text = quote(entry) if url else escape(entry)
        content = self.server_state.objects.get(entry)
        if content is None or (delimiter and entry.endswith(delimiter)):
            return f"<CommonPrefixes><Prefix>{text}</Prefix></CommonPrefixes>"
        return (
            f"<Contents><Key>{text}</Key><LastModified>{_MOMENT}</LastModified>"
            f"<ETag>&quot;{len(content)}&quot;</ETag><Size>{len(content)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )

    # --- bodies and answers ---------------------------------------------------------------------

    def _read_body(self) -> bytes:
        body = self._read_raw_body()
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return body
        pieces, position = [], 0
        while position < len(body):
            start = body.index(b"\r\n", position) + 2
            size = int(body[position : start - 2].partition(b";")[0], 16)
            if size == 0:
                break
            pieces.append(body[start : start + size])
            position = start + size + 2
        return b"".join(pieces)

    def _read_raw_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size)
            if len(body) < size:
                raise ConnectionError
            return body
        pieces = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(pieces)

    def _answer(
        self, content: bytes, status: int = HTTPStatus.OK, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()

    def _xml(self, root: str, inner: str) -> None:
        text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}>{inner}</{root}>'
        self._answer(text.encode(), HTTPStatus.OK, {"Content-Type": "application/xml"})

    def _error(self, status: int, code: str) -> None:
        if self.command == "HEAD":
            self._answer(b"", status)
            return
        text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
        self._answer(text.encode(), status, {"Content-Type": "application/xml"})


def _etag(content: bytes) -> str:
    return f'"{len(content)}"'  # no client here compares it


def _object_headers(content: bytes) -> dict[str, str]:
    return {"ETag": _etag(content), "Last-Modified": _DATE, "Accept-Ranges": "bytes"}
