// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SERVER_REST_TOKEN_H_
#define MILLRACE_SERVING_SERVER_REST_TOKEN_H_

// The token of a server, asked of HTTP requests as gRPC asks it of calls: each must have
//
//   Authorization: Bearer TOKEN
//
// probes, metrics and requests for what is not there among them. Others are answered 401 with
// WWW-Authenticate and a JSON error, and go no further. Their bodies were read by then, within the
// server's bounds.
//
// Thread-safety: of the handler as HttpServer asks. What a comparison takes tells nothing of the
// token (IsSameSecret). Failure: the 401; no message holds the token.

#include <string>

#include "net/http/http_server.h"

namespace millrace {

// `next` gets what has the token; without a token it gets everything.
HttpHandler AskForToken(std::string token, HttpHandler next);

}  // namespace millrace

#endif  // MILLRACE_SERVING_SERVER_REST_TOKEN_H_
