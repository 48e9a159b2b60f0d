// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_REST_REST_ANSWER_H_
#define MILLRACE_SERVING_REST_REST_ANSWER_H_

// What the fronts of REST (/v1/ and /v2) answer alike: headers, preflights of CORS, errors.
//
// Thread-safety: functions, of one request each. Failure: none.

#include "core/status.h"
#include "net/http/http_server.h"

namespace millrace {

// Of each reply.
HttpHeaders RestReplyHeaders(bool cors);

// An OPTIONS of CORS, which asks what it may ask.
void AnswerPreflight(HttpRequest* request);

// With the code of the status, and when to come again where that helps. Its text is cut: it may
// show what the client sent.
void AnswerRestError(HttpRequest* request, const Status& error, bool cors);

}  // namespace millrace

#endif  // MILLRACE_SERVING_REST_REST_ANSWER_H_
