// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_HTTP_SERVER_OPTIONS_H_
#define MILLRACE_NET_HTTP_HTTP_SERVER_OPTIONS_H_

// What options an HttpServer can have, and what it needs of its library.
//
// Thread-safety: functions. Failure: InvalidArgument for options that no server can have;
// Unimplemented for a library that was built without something.

#include "core/status.h"
#include "net/http/http_server.h"

namespace millrace {

Status CheckHttpServerOptions(const HttpServerOptions& options);
Status CheckHttpLibrary(bool needs_tls);

// Event loops, each a thread.
int NumHttpLoops(const HttpServerOptions& options);

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_HTTP_SERVER_OPTIONS_H_
