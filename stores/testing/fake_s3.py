#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A store that speaks S3, in memory, for tests. It checks signatures, and fails as it is told.

Usage: fake_s3.py [--port PORT] [--certificate FILE --key FILE]

Prints "listening on PORT"; ends when its standard input does. It has the bucket `bucket`, by path, for
the keys AKIAFAKE and fake-secret. POST /_control takes a JSON object:

  {"faults": [{"kind": KIND, "method": "PUT", "times": 2, "after": 1, "query": "uploads"}]}
      KIND: 500, 503 (a status), SlowDown, RequestTimeout, cut (half of the body comes), lost (done, but
      no answer comes), reset (neither), hang (nothing comes after the header)
  {"skew": 3600}         its clock is so many seconds ahead
  {"page": 2}            most keys of a page
  {"omit_newest": true}  listings do not know the object that was written last
  {"no_conditions": true}  If-None-Match is not implemented
  {"keys_end_in": 100}   what its /latest and /container say of their keys
  {"forget": true}       empties the bucket and forgets all of this

GET /_control answers what there is: keys, uploads, requests by method, calls for credentials.
"""

import argparse
import base64
import datetime
import hashlib
import hmac
import http.server
import json
import os
import ssl
import sys
import threading
import urllib.parse
import xml.etree.ElementTree
from xml.sax.saxutils import escape

SECRETS = {"AKIAFAKE": "fake-secret"}
BUCKET = "bucket"
LEAST_PART = 1024  # real stores: 5 MB, the last one apart


class Failure(Exception):
    def __init__(self, status, code, message=""):
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


class Store:
    """What is stored, and what is to fail. Guarded by `lock`."""

    def __init__(self):
        self.lock = threading.RLock()
        self.forget()

    def forget(self):
        self.objects = {}  # key -> (bytes, etag, time, metadata)
        self.uploads = {}  # id -> (key, metadata, {number: bytes})
        self.newest = None
        self.faults = []
        self.skew = 0
        self.page = 1000
        self.omit_newest = False
        self.no_conditions = False
        self.keys_end_in = None
        self.requests = {}
        self.number = 0
        self.credential_calls = 0

    def now(self):
        return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=self.skew)

    def put(self, key, data, etag, metadata):
        self.objects[key] = (data, etag, self.now(), metadata)
        self.newest = key

    def fault(self, method, query):
        for fault in self.faults:
            if fault.get("method", method) != method or fault.get("query", "") not in query:
                continue
            if fault.get("after", 0) > 0:
                fault["after"] -= 1
                continue
            if fault.setdefault("times", 1) > 0:
                fault["times"] -= 1
                return str(fault["kind"])
        return None


STORE = Store()


def md5_etag(data):
    return '"' + hashlib.md5(data).hexdigest() + '"'


def encode(text, safe=""):
    return urllib.parse.quote(text, safe=safe + "-._~")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # 40 ms a request otherwise

    def log_message(self, *_):
        pass

    # --- Signature Version 4 ---

    def check_signature(self, path, query, body):
        text = self.headers.get("authorization", "")
        if not text.startswith("AWS4-HMAC-SHA256 "):
            raise Failure(403, "AccessDenied", "no signature")
        parts = dict(part.strip().split("=", 1) for part in text[17:].split(","))
        access, day, region, service, end = parts["Credential"].split("/")
        if access not in SECRETS:
            raise Failure(403, "InvalidAccessKeyId")
        time = self.headers.get("x-amz-date", "")
        stamp = datetime.datetime.strptime(time, "%Y%m%dT%H%M%SZ").replace(
            tzinfo=datetime.timezone.utc)
        if abs((stamp - STORE.now()).total_seconds()) > 900:
            raise Failure(403, "RequestTimeTooSkewed")
        names = parts["SignedHeaders"].split(";")
        must = {"host"} | {name.lower() for name in self.headers if name.lower().startswith("x-amz-")}
        if not must <= set(names):
            raise Failure(403, "AccessDenied", "headers are not signed")
        digest = self.headers["x-amz-content-sha256"]
        if digest != hashlib.sha256(body).hexdigest():
            raise Failure(400, "XAmzContentSHA256Mismatch")
        pairs = sorted((encode(urllib.parse.unquote(name)), encode(urllib.parse.unquote(value)))
                       for name, _, value in (pair.partition("=") for pair in query.split("&"))
                       if name)
        canonical = "\n".join([
            self.command, encode(urllib.parse.unquote_to_bytes(path), "/"),
            "&".join(f"{name}={value}" for name, value in pairs),
            "".join(f"{name}:{self.headers.get(name, '').strip()}\n" for name in names),
            ";".join(names), digest])
        key = ("AWS4" + SECRETS[access]).encode()
        for part in (day, region, service, end):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        to_sign = "\n".join(["AWS4-HMAC-SHA256", time, f"{day}/{region}/{service}/{end}",
                             hashlib.sha256(canonical.encode()).hexdigest()])
        if hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest() != parts["Signature"]:
            raise Failure(403, "SignatureDoesNotMatch")

    # --- Answers ---

    def answer(self, status, body=b"", headers=None, size=None, fault=None):
        if fault == "lost":
            self.close_connection = True
            return
        self.send_response_only(status)
        self.send_header("Date", STORE.now().strftime("%a, %d %b %Y %H:%M:%S GMT"))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body) if size is None else size))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "hang":
            self.wfile.flush()
            self.close_connection = True
            self.connection.recv(1)  # until the client gives up
        elif fault == "cut":
            self.wfile.write(body[:len(body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(body)

    def xml(self, text, fault=None, status=200, headers=None):
        body = ('<?xml version="1.0" encoding="UTF-8"?>\n' + text).encode()
        self.answer(status, body, dict(headers or {}, **{"Content-Type": "application/xml"}),
                    fault=fault)

    def fail(self, failure):
        self.xml(f"<Error><Code>{failure.code}</Code><Message>{escape(failure.message)}</Message>"
                 "</Error>", status=failure.status)

    # --- Requests ---

    def serve(self):
        size = int(self.headers.get("content-length", "0"))
        body = self.rfile.read(size)
        path, _, query = self.path.partition("?")
        if path == "/_control":
            self.control(body)
            return
        if path.startswith("/latest/") or path == "/container":
            self.credentials(path)
            return
        with STORE.lock:
            STORE.requests[self.command] = STORE.requests.get(self.command, 0) + 1
            fault = STORE.fault(self.command, query)
        try:
            self.check_signature(path, query, body)
            if fault == "reset":
                self.close_connection = True
                return
            if fault in ("SlowDown", "RequestTimeout"):
                raise Failure(503 if fault == "SlowDown" else 400, fault)
            if fault is not None and fault.isdigit():
                raise Failure(int(fault), "InternalError" if fault == "500" else "ServiceUnavailable")
            key = urllib.parse.unquote(path[1:])
            bucket, _, key = key.partition("/")
            if bucket != BUCKET:
                raise Failure(404, "NoSuchBucket", bucket)
            arguments = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
            with STORE.lock:
                reply = self.reply(key, arguments, body)
            kind, rest = reply[0], reply[1:]
            (self.xml if kind == "xml" else self.answer)(*rest, fault=fault)
        except Failure as failure:
            self.fail(failure)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve

    def reply(self, key, query, body):
        if self.command in ("GET", "HEAD"):
            return self.read(key) if key else ("xml", self.listing(query))
        if self.command == "POST" and "delete" in query:
            return "xml", self.delete_many(body)
        if self.command == "POST" and "uploads" in query:
            STORE.number += 1
            name = f"upload-{STORE.number}"
            STORE.uploads[name] = (key, self.metadata(), {})
            return "xml", ("<InitiateMultipartUploadResult><UploadId>" + name +
                           "</UploadId></InitiateMultipartUploadResult>")
        if "uploadId" in query:
            return self.upload(key, query, body)
        if self.command == "DELETE":
            STORE.objects.pop(key, None)
            return "bytes", 204
        self.check_condition(key)
        copy = self.copy_source()
        data = body if copy is None else copy
        STORE.put(key, data, md5_etag(data), self.metadata())
        if copy is not None:
            return "xml", f"<CopyObjectResult><ETag>{md5_etag(data)}</ETag></CopyObjectResult>"
        return "bytes", 200, b"", {"ETag": md5_etag(data)}

    def metadata(self):
        return {name.lower(): value for name, value in self.headers.items()
                if name.lower().startswith("x-amz-meta-")}

    def check_condition(self, key):
        if "if-none-match" not in self.headers:
            return
        if STORE.no_conditions:
            raise Failure(501, "NotImplemented")
        if key in STORE.objects:
            raise Failure(412, "PreconditionFailed")

    def copy_source(self):
        source = self.headers.get("x-amz-copy-source")
        if source is None:
            return None
        bucket, _, key = urllib.parse.unquote(source.lstrip("/")).partition("/")
        if bucket != BUCKET or key not in STORE.objects:
            raise Failure(404, "NoSuchKey")
        data = STORE.objects[key][0]
        part = self.headers.get("x-amz-copy-source-range")
        if part:
            begin, end = part[len("bytes="):].split("-")
            data = data[int(begin):int(end) + 1]
        return data

    def read(self, key):
        if key not in STORE.objects:
            raise Failure(404, "NoSuchKey")
        data, etag, time, metadata = STORE.objects[key]
        if self.headers.get("if-match", etag) != etag:
            raise Failure(412, "PreconditionFailed")
        headers = dict(metadata, **{"ETag": etag,
                                    "Last-Modified": time.strftime("%a, %d %b %Y %H:%M:%S GMT")})
        if self.command == "HEAD":
            return "bytes", 200, b"", headers, len(data)
        part = self.headers.get("range")
        if not part:
            return "bytes", 200, data, headers
        begin, end = (int(number) for number in part[len("bytes="):].split("-"))
        if begin >= len(data):
            raise Failure(416, "InvalidRange")
        return "bytes", 206, data[begin:end + 1], headers

    def listing(self, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        most = min(int(query.get("max-keys", "1000")), STORE.page)
        after = query.get("continuation-token", "")
        after = base64.b64decode(after).decode() if after else ""
        found = {}  # name -> whether it is a prefix
        for key in STORE.objects:
            if not key.startswith(prefix) or (STORE.omit_newest and key == STORE.newest):
                continue
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key if end < 0 else key[:end + 1]
            if name > after:
                found[name] = end >= 0
        names = sorted(found)
        page, more = names[:most], len(names) > most
        out = ["<ListBucketResult><EncodingType>url</EncodingType>",
               f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>"]
        if more:
            out.append("<NextContinuationToken>" + base64.b64encode(page[-1].encode()).decode() +
                       "</NextContinuationToken>")
        for name in page:
            text = urllib.parse.quote_plus(name, safe="/")
            if found[name]:
                out.append(f"<CommonPrefixes><Prefix>{text}</Prefix></CommonPrefixes>")
            else:
                data, etag, time, _ = STORE.objects[name]
                out.append(f"<Contents><Key>{text}</Key><Size>{len(data)}</Size>"
                           f"<ETag>{escape(etag)}</ETag>"
                           f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z')}</LastModified>"
                           "</Contents>")
        return "".join(out) + "</ListBucketResult>"

    def delete_many(self, body):
        if base64.b64encode(hashlib.md5(body).digest()).decode() != self.headers.get("content-md5"):
            raise Failure(400, "InvalidDigest")
        keys = [node.text for node in xml.etree.ElementTree.fromstring(body).iter("Key")]
        if len(keys) > 1000:
            raise Failure(400, "MalformedXML")
        for key in keys:
            STORE.objects.pop(key, None)
        return "<DeleteResult></DeleteResult>"

    def upload(self, key, query, body):
        name = query["uploadId"]
        if name not in STORE.uploads or STORE.uploads[name][0] != key:
            raise Failure(404, "NoSuchUpload")
        _, metadata, parts = STORE.uploads[name]
        if self.command == "DELETE":
            del STORE.uploads[name]
            return "bytes", 204
        if self.command == "PUT":
            copy = self.copy_source()
            data = body if copy is None else copy
            parts[int(query["partNumber"])] = data
            if copy is not None:
                return "xml", f"<CopyPartResult><ETag>{md5_etag(data)}</ETag></CopyPartResult>"
            return "bytes", 200, b"", {"ETag": md5_etag(data)}
        self.check_condition(key)
        wanted = [(int(part.find("PartNumber").text), part.find("ETag").text)
                  for part in xml.etree.ElementTree.fromstring(body).iter("Part")]
        if wanted != [(number, md5_etag(parts.get(number, b"?"))) for number, _ in wanted]:
            raise Failure(400, "InvalidPart")
        if wanted != sorted(wanted):
            raise Failure(400, "InvalidPartOrder")
        if any(len(parts[number]) < LEAST_PART for number, _ in wanted[:-1]):
            raise Failure(400, "EntityTooSmall")
        data = b"".join(parts[number] for number, _ in wanted)
        etag = md5_etag(data)[:-1] + f'-{len(wanted)}"'
        STORE.put(key, data, etag, metadata)
        del STORE.uploads[name]
        return "xml", ("<CompleteMultipartUploadResult><ETag>" + escape(etag) +
                       "</ETag></CompleteMultipartUploadResult>")

    # --- Around the store ---

    def control(self, body):
        with STORE.lock:
            if self.command == "POST":
                wish = json.loads(body)
                if wish.pop("forget", False):
                    STORE.forget()
                for name, value in wish.items():
                    setattr(STORE, name, value)
            answer = {"keys": sorted(STORE.objects), "uploads": sorted(STORE.uploads),
                      "requests": STORE.requests, "credential_calls": STORE.credential_calls}
        self.answer(200, json.dumps(answer).encode())

    def credentials(self, path):
        with STORE.lock:
            if path == "/latest/api/token":
                reply = b"a-token" if self.command == "PUT" else b""
            elif path != "/container" and self.headers.get("x-aws-ec2-metadata-token") != "a-token":
                self.fail(Failure(401, "Unauthorized"))
                return
            elif path.endswith("/security-credentials/"):
                reply = b"role"
            elif path == "/container" and self.headers.get("authorization") != "a-word":
                self.fail(Failure(401, "Unauthorized"))
                return
            else:
                STORE.credential_calls += 1
                keys = {"AccessKeyId": "AKIAFAKE", "SecretAccessKey": "fake-secret",
                        "Token": f"session-{STORE.credential_calls}"}
                if STORE.keys_end_in is not None:
                    end = STORE.now() + datetime.timedelta(seconds=STORE.keys_end_in)
                    keys["Expiration"] = end.strftime("%Y-%m-%dT%H:%M:%SZ")
                reply = json.dumps(keys).encode()
        self.answer(200, reply)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # a client that left
            super().handle_error(request, client_address)


def main():
    flags = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    flags.add_argument("--port", type=int, default=0, help="0: any that is free")
    flags.add_argument("--certificate", help="PEM: speaks TLS")
    flags.add_argument("--key", help="PEM")
    args = flags.parse_args()
    server = Server(("127.0.0.1", args.port), Handler)
    if args.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(args.certificate, args.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(f"listening on {server.server_address[1]}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.buffer.read()
    os._exit(0)  # not after threads that hang


if __name__ == "__main__":
    main()
